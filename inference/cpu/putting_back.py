"""A model's own linears, put back where they were packed as one."""

from __future__ import annotations

from torch import Tensor, nn

from inference.models.joined import Linears
from inference.models.linears import NativeLinear, make_linear
from inference.models.quantised import codes_of, make_quantised
from inference.models.weights import NarrowLinear


def put_back(linears: Linears, packed: NativeLinear) -> None:
    """Have a model's own linears again, of what they were packed to."""
    sizes = linears.sizes
    whole = packed.unpack()
    if linears.order is not None:
        whole = _reordered(whole, linears.order.argsort())
    biases = [None] * len(sizes) if whole.bias is None else whole.bias.split(sizes)
    for name, part, bias in zip(linears.names, _separate(whole, sizes), biases, strict=True):
        part.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)
        setattr(linears.parent, name, part)


def put_one_back(kept: Linears, packed: NativeLinear) -> None:
    """Give a linear its weight back; its bias stayed, and so does the module, of which more may be known."""
    (name,) = kept.names
    module, weight = kept.parent.get_submodule(name), packed.unpack().weight
    narrow = isinstance(module, NarrowLinear)
    module.weight = nn.Parameter(weight if narrow else weight.float(), requires_grad=False)


def _reordered(whole: nn.Linear, order: Tensor) -> nn.Linear:
    """Return a linear with its outputs in another order."""
    bias = None if whole.bias is None else whole.bias[order]
    codes = codes_of(whole)
    if codes is not None:
        return make_quantised(codes.pick(order), bias)
    return make_linear(whole.weight[order], bias)


def _separate(whole: nn.Linear, sizes: list[int]) -> list[nn.Linear]:
    """Return linears with so many of another's outputs each, without a bias."""
    codes = codes_of(whole)
    if codes is not None:
        return [make_quantised(each, None) for each in codes.split(sizes)]
    return [make_linear(each, None) for each in whole.weight.split(sizes)]
