"""The activation xIELU (Huang and Schlag 2024, arXiv:2411.13010), whose slopes each layer has learned."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

_NEAR = {"rtol": 1e-5, "atol": 1e-6}


class Xielu(NamedTuple):
    """a x^2 + b x above 0, c (exp(min(x, d)) - 1 - x) + b x elsewhere."""

    above: float  # a
    linear: float  # b
    below: float  # c
    least: float  # d, 0 or hardly less

    def __call__(self, x: Tensor) -> Tensor:
        """Return what it makes of numbers."""
        positive = (self.above * x + self.linear) * x
        negative = self.below * (torch.expm1(x.clamp(max=self.least)) - x) + self.linear * x
        return torch.where(x > 0, positive, negative)


def find_xielu(function: Callable[[Tensor], Any], x: Tensor) -> Xielu | None:
    """Return the numbers by which a function is one, as far as it can be told at x; None: it is another."""
    found = function(torch.tensor([1.0, 2.0, -1.0, 0.0], dtype=torch.float64))
    if not isinstance(found, Tensor) or found.shape != (4,):
        return None
    one, two, minus, zero = found.double().tolist()
    above = (two - 2 * one) / 2
    linear = one - above
    below = (minus + linear) / (math.expm1(-1) + 1)
    if not below or zero / below <= -1:
        return None
    made = Xielu(above, linear, below, min(math.log1p(zero / below), 0.0))
    same = torch.allclose(function(x).double(), made(x.double()), **_NEAR)
    return made if same else None
