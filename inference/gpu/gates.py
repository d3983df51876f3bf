"""Gates of experts: what their classes compute between two linears, found by trying."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, silu

LOG = logging.getLogger(__name__)

_SCALES = (0.1, 1.0, 10.0, 100.0)  # of what is tried, so that a limit is met
_NEAR = 1e-5
_ROWS, _WIDTH = 8, 64
_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": silu,
    "gelu_tanh": lambda x: gelu(x, approximate="tanh"),
    "gelu": gelu,
}


@dataclass(frozen=True, slots=True)
class Gate:
    """activation(gate) * (up + shift), both within a limit: of silu x * sigmoid(slope * x)."""

    activation: str = "silu"
    interleaved: bool = False  # gate and up are neighbours; else one is behind the other
    limit: float = math.inf  # of the gate, and of up on both sides
    slope: float = 1.0
    shift: float = 0.0

    @property
    def is_plain(self) -> bool:
        """Return whether it is what MLPs have."""
        return self == Gate(self.activation)

    def apply(self, gate_up: Tensor) -> Tensor:
        """Return (T, I) of (T, 2 * I), computed in float32 and rounded once."""
        wide = gate_up.float()
        gate, up = (wide[:, ::2], wide[:, 1::2]) if self.interleaved else wide.chunk(2, -1)
        if self.limit < math.inf:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        activated = _ACTIVATIONS[self.activation](gate)
        if self.slope != 1.0:
            activated = gate * torch.sigmoid(self.slope * gate)
        return (activated * (up + self.shift)).to(gate_up.dtype)


@torch.inference_mode()
def find_gate(own: nn.Module, apply: Callable[[Tensor], Tensor]) -> Gate | None:
    """Return the gate that a module applies (T, 2 * I) to (T, I), None if it is none that is known.

    Its numbers are looked for among the module's own.
    """
    try:
        tried = [_rows(scale) for scale in _SCALES]
        expected = [apply(rows).float() for rows in tried]
    except Exception as error:  # any model's code may want to be given something else
        LOG.debug("The gate of `%s` can't be tried: %s", type(own).__name__, error)
        return None
    for gate in _gates(own):
        if all(_is_near(gate.apply(rows), each) for rows, each in zip(tried, expected, strict=True)):
            return gate
    return None


def _rows(scale: float) -> Tensor:
    return torch.randn(_ROWS, _WIDTH, generator=torch.Generator().manual_seed(0)) * scale


def _is_near(found: Tensor, expected: Tensor) -> bool:
    return found.shape == expected.shape and bool((found - expected).norm() <= _NEAR * expected.norm())


def _gates(own: nn.Module) -> Iterator[Gate]:
    """Yield the plain ones first, then all that a module's own numbers allow."""
    yield from map(Gate, _ACTIVATIONS)
    numbers = [float(each) for each in vars(own).values() if type(each) in (int, float) and each > 0]
    for interleaved in (False, True):
        for limit in (math.inf, *numbers):
            for shift in (0.0, 1.0):
                for activation in _ACTIVATIONS:
                    yield Gate(activation, interleaved, limit, 1.0, shift)
                for slope in numbers:
                    yield Gate("silu", interleaved, limit, slope, shift)
