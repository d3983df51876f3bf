"""In which order a merged linear gives queries, keys and values: some models have them head by head.

It is found by having the linear give numbers of its outputs in place of what it computes, and watching which
of them attention is given as what. At position 0 nothing is rotated.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.kernels.reference import Attention
from inference.models.attending import ATTENTION, attend_by, attending_by, install, installed, uninstall
from inference.models.joined import Linears

_BASE = 128  # such numbers are exact in all dtypes


@dataclass(slots=True, eq=False)
class _Watch:
    """Stands in for a layer's cache, and keeps what attention is given."""

    seen: list[Tensor] = field(default_factory=list)  # of each pass: queries, keys, values, (outputs,)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
        self.seen.append(torch.cat([each[0].flatten() for each in (query, key, value)]).float().cpu())
        return query.new_zeros(*query.shape[:2], value.shape[2])


@torch.inference_mode()
def merged_orders(model: PreTrainedModel, merged: Mapping[nn.Module, Linears]) -> dict[nn.Module, Tensor]:
    """Return the order that puts queries before keys before values, of attention modules that have another.

    `merged`: the one linear of each. Nothing is changed. Those where none is found are left out: whether they
    are in order is seen by what they compute.
    """
    watches = {attention: _Watch() for attention in merged}
    sizes = {attention: linears.sizes[0] for attention, linears in merged.items()}
    passes = _digits(max(sizes.values(), default=0))
    for digit in range(passes):
        with _giving(merged, digit), _watched(model, watches):
            zero = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
            model(input_ids=zero, position_ids=zero, use_cache=False)
    orders = {}
    for attention, watch in watches.items():
        order = _order(watch.seen, sizes[attention]) if len(watch.seen) == passes else None
        if order is not None and not torch.equal(order, torch.arange(len(order))):
            orders[attention] = order
    return orders


def _digits(numbers: int) -> int:
    found = 1
    while _BASE**found < numbers:
        found += 1
    return found


def _order(seen: Iterable[Tensor], size: int) -> Tensor | None:
    """Return which outputs attention was given; None if these aren't all, each once."""
    number = sum(digits.double() * _BASE**at for at, digits in enumerate(seen))
    if not isinstance(number, Tensor) or number.shape != (size,):
        return None
    order = number.long()
    return order if torch.equal(order.sort().values, torch.arange(size)) else None


@contextmanager
def _giving(merged: Mapping[nn.Module, Linears], digit: int) -> Iterator[None]:
    """Have each linear give one digit of its outputs' numbers, and norms of queries and keys what they get."""
    with ExitStack() as stack:
        for attention, linears in merged.items():
            linear = attention.get_submodule(linears.names[0])
            numbers = torch.arange(linears.sizes[0]) // _BASE**digit % _BASE

            def give(_: nn.Module, __: Any, result: Tensor, numbers: Tensor = numbers) -> Tensor:
                return numbers.to(result).expand_as(result).clone()

            stack.callback(linear.register_forward_hook(give).remove)
            for name, module in attention.named_children():
                if "norm" in name:
                    stack.callback(module.register_forward_hook(_as_given).remove)
        yield


def _as_given(_: nn.Module, arguments: tuple[Any, ...], __: Any) -> Any:
    return arguments[0]


@contextmanager
def _watched(model: PreTrainedModel, watches: Mapping[nn.Module, _Watch]) -> Iterator[None]:
    """Have the model's attention be watched, for once."""
    before, others = attending_by(model), {}
    attend_by(model, ATTENTION)
    for module in model.modules():
        others[module] = installed(module)
        install(module, watches.get(module) or _Watch())
    try:
        yield
    finally:
        for module, layer in others.items():
            uninstall(module)
            if layer is not None:
                install(module, layer)
        attend_by(model, before)
