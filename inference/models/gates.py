"""What a mixture's experts make of what their first linear gives, found by trying it."""

from __future__ import annotations

import itertools
import logging
import math
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from inference.kernels.gating import ACTIVATIONS, Gating

LOG = logging.getLogger(__name__)

_ROWS, _OUTPUTS = 8, 64
_SCALES = (0.1, 1.0, 10.0, 100.0)  # of what is tried, so that a limit is met
_NEAR = 1e-5


@torch.inference_mode()
def find_gating(experts: nn.Module) -> Gating | None:
    """Return what a layer's experts compute between their linears; None: something else.

    Its numbers are looked for among the module's own.
    """
    own: Any = experts
    try:
        apply = own._apply_gate if own.has_gate else own.act_fn
        tried = [_rows(scale) for scale in _SCALES]
        expected = [apply(rows).float() for rows in tried]
    except Exception as error:  # any model's code may want to be given something else
        LOG.debug("The gate of `%s` can't be tried: %s", type(own).__name__, error)
        return None
    for each in _candidates(own):
        if all(_is_near(each(rows), found) for rows, found in zip(tried, expected, strict=True)):
            return each
    return None


def _rows(scale: float) -> Tensor:
    return torch.randn(_ROWS, _OUTPUTS, generator=torch.Generator().manual_seed(0)) * scale


def _is_near(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and bool((found - expected).norm() <= _NEAR * expected.norm())


def _candidates(experts: Any) -> Iterator[Gating]:
    """Yield the plain ones first, then all that a module's own numbers allow."""
    if not experts.has_gate:
        yield from (Gating(gates=False, activation=name) for name in ACTIVATIONS)
        return
    numbers = [float(each) for each in vars(experts).values() if type(each) in (int, float) and each > 0]
    for limit, offset, alternating in itertools.product((math.inf, *numbers), (0.0, 1.0), (False, True)):
        form = partial(Gating, limit=limit, offset=offset, alternating=alternating)
        yield from (form(activation=name) for name in ACTIVATIONS)
        yield from (form(factor=factor) for factor in numbers if factor != 1)
