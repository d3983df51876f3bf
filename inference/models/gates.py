"""What a mixture's experts make of what their first linear gives, found by trying it."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import nn

from inference.kernels.gating import ACTIVATIONS, Gating

_ROWS = 4
_SPREAD = 6.0  # of numbers that are tried: beyond usual limits
_GREATEST = 1000.0  # of a limit or a factor


def find_gating(experts: nn.Module, outputs: int) -> Gating | None:
    """Return what experts whose first linear has so many outputs compute; None: something else."""
    own: Any = experts
    generator = torch.Generator().manual_seed(0)
    given = torch.randn((_ROWS, outputs), generator=generator) * _SPREAD
    with torch.inference_mode():
        expected = own._apply_gate(given) if own.has_gate else own.act_fn(given)
        for each in _candidates(own):
            found = each(given)
            if found.shape == expected.shape and torch.allclose(found, expected, rtol=1e-5, atol=1e-5):
                return each
    return None


def _candidates(experts: Any) -> Iterator[Gating]:
    if not experts.has_gate:
        yield from (Gating(gates=False, activation=name) for name in ACTIVATIONS)
        return
    numbers = {float(each) for each in vars(experts).values() if type(each) in (int, float)}
    numbers = {each for each in numbers if 0 < each <= _GREATEST}
    limits, factors = [math.inf, *numbers], [1.0, *(numbers - {1.0})]
    for limit, offset, alternating in itertools.product(limits, (0.0, 1.0), (False, True)):
        form = partial(Gating, gates=True, limit=limit, offset=offset, alternating=alternating)
        yield from (form(activation=name) for name in ACTIVATIONS)
        yield from (form(activation="silu", factor=factor) for factor in factors if factor != 1)
