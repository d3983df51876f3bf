"""Linears whose weights stay in the few bits that their files have them in, from the files to the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from inference.models.numberless import Numberless
from inference.models.weights import NarrowLinear
from inference.quantised.codes import Codes

_EXPANDED = 4 * 1024 * 1024  # numbers that are expanded at once


class QuantisedLinear(NarrowLinear):
    """A linear that expands its weight as it is used, some rows at a time: in float32 exactly."""

    codes: Codes | None  # None: they are packed
    computed_in: torch.dtype

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Have the codes go where the module goes, and it compute in the dtype that it is given."""
        super()._apply(fn, recurse)
        if self.codes is not None:
            like = fn(torch.empty(0, dtype=self.computed_in, device=self.codes.codes.device))
            self.__dict__["codes"] = self.codes.to(like.device)
            self.__dict__["computed_in"] = like.dtype
        return self

    def __getattr__(self, name: str) -> Any:
        """Return a member that the class itself doesn't have."""
        if name == "weight" and (codes := self.codes) is not None:
            return self.get_weight() if self.is_asked() else self.numberless(codes)
        return super().__getattr__(name)

    def forward(self, given: Tensor) -> Tensor:
        """Return (..., out_features) in the dtype that is computed in."""
        assert self.codes is not None, "it isn't packed"
        rows, dtype = max(_EXPANDED // self.in_features, 1), self.computed_in
        parts = self.codes.split(rows)
        result = torch.cat([linear(given.to(dtype), part.expand().to(dtype)) for part in parts], -1)
        return result if self.bias is None else result + self.bias.to(dtype)

    def get_weight(self) -> Tensor:
        """Return the weight in the dtype that is computed in."""
        assert self.codes is not None, "it isn't packed"
        return self.codes.expand().to(self.computed_in)

    def numberless(self, codes: Codes) -> Tensor:
        """Return what stands for the weight where only its form is asked for."""
        return Numberless.of(codes.shape, self.computed_in, codes.codes.device)


LINEARS = (nn.Linear, NarrowLinear, QuantisedLinear)  # which compute what nn.Linear does


def keep_codes(module: nn.Module, codes: Codes, dtype: torch.dtype = torch.float32) -> None:
    """Have a plain linear compute in `dtype` with such a weight in place of its own."""
    assert type(module) is nn.Linear, "others compute something else"
    module._parameters["weight"] = None
    module.__class__ = QuantisedLinear
    module.__dict__["codes"] = codes
    module.__dict__["computed_in"] = dtype


def make_quantised(codes: Codes, bias: Tensor | None, dtype: torch.dtype = torch.float32) -> QuantisedLinear:
    """Return a linear with such a weight."""
    n, k = codes.shape
    module = nn.Linear(k, n, bias=bias is not None, device="meta")
    if bias is not None:
        module.bias = nn.Parameter(bias, requires_grad=False)
    keep_codes(module, codes, dtype)
    assert isinstance(module, QuantisedLinear), "it is now"
    return module


def codes_of(module: nn.Module) -> Codes | None:
    """Return a linear's weight if it is in few bits, None if it has another."""
    return module.codes if isinstance(module, QuantisedLinear) else None
