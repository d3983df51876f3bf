"""What a mixture's experts make of what their first linear gives, by torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import gelu, relu, silu


def _squared_relu(x: Tensor) -> Tensor:
    return relu(x).square()


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {  # in the order of experts.h
    "silu": silu,
    "gelu_tanh": partial(gelu, approximate="tanh"),
    "gelu": gelu,
    "squared_relu": _squared_relu,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Gating:
    """activation(gate) * (up + offset), or activation(up) where there are no gates.

    Gates are at most `limit`, ups at both sides, and silu(x) is x * sigmoid(factor * x).
    """

    gates: bool = True
    activation: str = "silu"
    factor: float = 1.0
    limit: float = math.inf
    offset: float = 0.0
    alternating: bool = False  # a gate and its up are neighbours, and not halves

    @property
    def is_plain(self) -> bool:
        """Return whether it is what MLPs have."""
        return self == Gating(activation=self.activation)

    def __call__(self, found: Tensor) -> Tensor:
        """Return (..., inner) of what the first linear gives (..., n), in its dtype.

        Of 16 bits it is computed in float32, and rounded once.
        """
        wide = found.float() if found.dtype.itemsize < 4 else found
        if not self.gates:
            return self._activate(wide).to(found.dtype)
        gate, up = self.halves(wide)
        if self.limit < math.inf:
            gate, up = gate.clamp(max=self.limit), up.clamp(-self.limit, self.limit)
        return (self._activate(gate) * (up + self.offset)).to(found.dtype)

    def halves(self, found: Tensor) -> tuple[Tensor, Tensor]:
        """Return gates and ups."""
        if self.alternating:
            return found[..., ::2], found[..., 1::2]
        gate, up = found.chunk(2, dim=-1)
        return gate, up

    def _activate(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(self.factor * x) if self.factor != 1 else ACTIVATIONS[self.activation](x)
