"""Linears whose weights stay in the 4 bits that their files have them in, from the files to the kernels."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from inference.models.numberless import NumberlessOnHost
from inference.models.weights import NarrowLinear
from inference.quantised.bits4 import Bits4

_EXPANDED = 4 * 1024 * 1024  # numbers that are expanded at once


class Bits4Linear(NarrowLinear):
    """A linear that expands its weight as it is used, to float32 and so exactly, some rows at a time."""

    codes: Bits4 | None  # None: they are packed

    def __getattr__(self, name: str) -> Any:
        """Return a member that the class itself doesn't have."""
        if name == "weight" and (codes := self.codes) is not None:
            return codes.expand() if self.is_asked() else NumberlessOnHost.of(codes.shape)
        return super().__getattr__(name)

    def forward(self, given: Tensor) -> Tensor:
        """Return (..., out_features) in float32."""
        assert self.codes is not None, "it isn't packed"
        rows = max(_EXPANDED // self.in_features, 1)
        result = torch.cat([linear(given.float(), part.expand()) for part in self.codes.split(rows)], -1)
        return result if self.bias is None else result + self.bias.float()

    def get_weight(self) -> Tensor:
        """Return the weight in float32."""
        assert self.codes is not None, "it isn't packed"
        return self.codes.expand()


LINEARS = (nn.Linear, NarrowLinear, Bits4Linear)  # which compute what nn.Linear does


def keep_bits4(module: nn.Module, codes: Bits4) -> None:
    """Have a plain linear compute with such a weight in place of its own."""
    assert type(module) is nn.Linear, "others compute something else"
    module._parameters["weight"] = None
    module.__class__ = Bits4Linear
    module.__dict__["codes"] = codes


def make_bits4(codes: Bits4, bias: Tensor | None) -> Bits4Linear:
    """Return a linear with such a weight."""
    n, k = codes.shape
    module = nn.Linear(k, n, bias=bias is not None, device="meta")
    if bias is not None:
        module.bias = nn.Parameter(bias, requires_grad=False)
    keep_bits4(module, codes)
    assert isinstance(module, Bits4Linear), "it is now"
    return module


def codes_of(module: nn.Module) -> Bits4 | None:
    """Return a linear's weight in 4 bits, None if it has another."""
    return module.codes if isinstance(module, Bits4Linear) else None
