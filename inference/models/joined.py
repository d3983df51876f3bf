"""Linears of a layer that are computed as one, and where they are found."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from inference.models.linears import Numbers, weight_and_bias
from inference.models.numberless import Numberless
from inference.models.other_shape import OtherShape
from inference.models.quantised import LINEARS, codes_of
from inference.quantised.codes import join

_TRIED = 2  # rows
_NEAR = {"rtol": 1e-4, "atol": 1e-5}


@dataclass(frozen=True, slots=True, eq=False)
class Linears:
    """Linears of one module that get the same input, to be computed as one."""

    parent: nn.Module
    names: tuple[str, ...]
    order: Tensor | None = None  # (n,): which of one linear's outputs come first; None: as they are

    def joined(self) -> tuple[Tensor, Tensor | None]:
        """Return their weights (n, k) and biases (n,) as one."""
        pairs = [weight_and_bias(self.parent.get_submodule(name)) for name in self.names]
        if len(pairs) == 1:
            weight, bias = pairs[0]
            if self.order is None:
                return weight, bias
            return weight[self.order], None if bias is None else bias[self.order]
        return torch.cat([weight for weight, _ in pairs]), self._bias()

    def numbers(self) -> Numbers:
        """Return what they are packed of as one: if all are in few bits, and alike, these."""
        codes = join([codes_of(self.parent.get_submodule(name)) for name in self.names])
        if codes is None:
            return (*self.joined(), None)
        bias = self._bias()
        if self.order is not None:
            codes, bias = codes.pick(self.order), None if bias is None else bias[self.order]
        return Numberless.of(codes.shape), bias, codes

    def ordered(self, order: Tensor) -> Linears:
        """Return the same with its outputs in another order."""
        assert len(self.names) == 1, "those of several are one behind the other"
        return replace(self, order=order)

    def _bias(self) -> Tensor | None:
        biases = [self.parent.get_submodule(name).bias for name in self.names]
        first = next((each.detach().float() for each in biases if each is not None), None)
        if first is None:
            return None
        sized = zip(biases, self.sizes, strict=True)
        return torch.cat([first.new_zeros(n) if each is None else each.detach().float() for each, n in sized])

    @property
    def inputs(self) -> int:
        """Return how many numbers they read."""
        return linear_size(self.parent.get_submodule(self.names[0]))[1]

    @property
    def sizes(self) -> list[int]:
        """Return the outputs of each."""
        return [linear_size(self.parent.get_submodule(name))[0] for name in self.names]


def linear_size(module: nn.Module) -> tuple[int, int]:
    """Return a linear's outputs and inputs."""
    if isinstance(module, Conv1D):
        return int(module.nf), int(module.nx)
    return int(module.out_features), int(module.in_features)


def is_linear(module: nn.Module | None) -> bool:
    """Return whether a module computes what nn.Linear does: also a Conv1D, and others by trying them."""
    if type(module) in (*LINEARS, Conv1D):
        return True
    if not isinstance(module, nn.Linear) or not isinstance(module._parameters.get("weight"), Tensor):
        return False
    weight, bias = weight_and_bias(module)
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(_TRIED, weight.shape[1], generator=generator).to(weight)
    with torch.inference_mode():
        found, expected = module(x), linear(x, weight, bias)
    if not isinstance(found, Tensor) or found.shape != expected.shape:  # as of a router
        return False
    return torch.allclose(found.float(), expected.float(), **_NEAR)


def named_linears(parent: nn.Module, choices: tuple[tuple[str, ...], ...]) -> Linears:
    """Return the first of several groups of names that are all plain linears; raise OtherShape."""
    for names in choices:
        modules = [getattr(parent, name, None) for name in names]
        if all(type(module) in LINEARS for module in modules):
            return Linears(parent, names)
    raise OtherShape(f"`{type(parent).__name__}` has no linears {' or '.join(map(', '.join, choices))}")


def linears_in(parent: nn.Module) -> Iterator[tuple[str, tuple[int, int]]]:
    """Yield a module's own linears by name, with their outputs and inputs."""
    for name, module in parent.named_children():
        if is_linear(module):
            yield name, linear_size(module)
