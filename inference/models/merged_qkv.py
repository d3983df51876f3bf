"""What attention does with what its linears give before it attends: in which order, and multiplied by what.

A merged linear may give queries, keys and values head by head, and queries may be multiplied before scores
are. It is found by having linears give numbers of their outputs in place of what they compute, and watching
which of them attention is given as what. At position 0 nothing is rotated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.kernels.reference import Attention
from inference.models.attending import ATTENTION, attend_by, attending_by, install, installed, uninstall
from inference.models.joined import Linears
from inference.models.other_shape import OtherShape

_GREAT = 4096  # numbers that are cut off are so long before
_BASE = 128  # such numbers are exact in all dtypes
_NEAR = 1e-2  # of a number, as 16 bits round it


@dataclass(frozen=True, slots=True, eq=False)
class Layout:
    """What becomes of the outputs of an attention module's linears."""

    order: Tensor | None  # (n,): that puts queries before keys before values; None: they are so
    factor: float  # what queries are multiplied by


@dataclass(slots=True, eq=False)
class Watch:
    """Stands in for a layer's cache, and keeps what attention is given."""

    queries: list[Tensor] = field(default_factory=list)  # of each pass, (heads * dim,)
    others: list[Tensor] = field(default_factory=list)  # keys and values
    sizes: list[Tensor] = field(default_factory=list)  # (2, tokens): norms of queries, of keys

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
        self.queries.append(query[0].flatten().float().cpu())
        norms = [each.flatten(1).double().norm(dim=1) for each in (query, key)]
        self.sizes.append(torch.stack(norms).cpu())
        self.others.append(torch.cat([each[0].flatten() for each in (key, value)]).float().cpu())
        return query.new_zeros(*query.shape[:2], value.shape[2])


@torch.inference_mode()
def check_uncut(model: PreTrainedModel, linears: Mapping[nn.Module, Linears]) -> None:
    """Raise OtherShape if attention isn't given what linears give, however great that is. Nothing is changed.

    Some models clip it (`clip_qkv`), which a proof needn't come to see: few numbers are that great.
    """
    sizes = {attention: sum(each.sizes) for attention, each in linears.items()}
    numbers = [{each: torch.full((n,), float(by)) for each, n in sizes.items()} for by in (1, _GREAT)]
    for seen in watch_attention(model, linears, numbers).values():
        for given in (seen.queries, seen.others):
            if given and not torch.allclose(given[1], given[0] * _GREAT, rtol=_NEAR):
                raise OtherShape("its queries, keys or values are clipped")


@torch.inference_mode()
def find_layouts(model: PreTrainedModel, linears: Mapping[nn.Module, Linears]) -> dict[nn.Module, Layout]:
    """Return the layouts of attention modules by the linears of each. Nothing is changed.

    Those where none is found are left out: whether they are in order is seen by what they compute.
    """
    sizes = {attention: sum(each.sizes) for attention, each in linears.items()}
    numbers = [{each: torch.ones(n) for each, n in sizes.items()}]
    for digit in range(_digits(max(sizes.values(), default=0))):
        numbers.append({each: torch.arange(n) // _BASE**digit % _BASE for each, n in sizes.items()})
    watches = watch_attention(model, linears, numbers)
    found = {attention: _layout(watch, sizes[attention]) for attention, watch in watches.items()}
    return {attention: layout for attention, layout in found.items() if layout is not None}


def watch_attention(
    model: PreTrainedModel,
    linears: Mapping[nn.Module, Linears],
    passes: Sequence[Mapping[nn.Module, Tensor]],
    positions: Sequence[int] = (0,),
) -> dict[nn.Module, Watch]:
    """Return what attention is given at some positions where linears give numbers of each pass."""
    watches = {attention: Watch() for attention in linears}
    for numbers in passes if linears else ():
        with _giving(linears, numbers), _watched(model, watches):
            at = torch.tensor([list(positions)], device=model.device)
            model(input_ids=torch.zeros_like(at), position_ids=at, use_cache=False)
    return watches


def _digits(numbers: int) -> int:
    found = 1
    while _BASE**found < numbers:
        found += 1
    return found


def _layout(watch: Watch, size: int) -> Layout | None:
    """Return it, of a pass of ones and one for each digit; None if outputs aren't all there, each once."""
    if not watch.queries or not (watch.others[0] == 1).all():
        return None
    factor = float(watch.queries[0][0])
    digits = [torch.cat([q / factor, rest]) for q, rest in zip(watch.queries, watch.others, strict=True)]
    whole = [each.round() for each in digits]
    if len(whole[0]) != size or any(
        (a - b).abs().max() > _NEAR * _BASE for a, b in zip(digits, whole, strict=True)
    ):
        return None
    order = torch.zeros(size, dtype=torch.int64)
    for at, each in enumerate(whole[1:]):
        order += each.long() * _BASE**at
    straight = torch.arange(size)
    if not torch.equal(order.sort().values, straight):
        return None
    return Layout(None if torch.equal(order, straight) else order, factor)


@contextmanager
def _giving(linears: Mapping[nn.Module, Linears], numbers: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Have linears give numbers of their outputs, and norms inside what they get."""
    with ExitStack() as stack:
        for attention, group in linears.items():
            for name, part in zip(group.names, numbers[attention].split(group.sizes), strict=True):
                give = _giver(part)
                stack.callback(attention.get_submodule(name).register_forward_hook(give).remove)
            for name, module in attention.named_children():
                if "norm" in name:
                    stack.callback(module.register_forward_hook(_as_given).remove)
        yield


def _giver(numbers: Tensor) -> Any:
    return lambda _, __, result: numbers.to(result).expand_as(result).clone()


def _as_given(_: nn.Module, arguments: tuple[Any, ...], __: Any) -> Any:
    return arguments[0]


@contextmanager
def _watched(model: PreTrainedModel, watches: Mapping[nn.Module, Watch]) -> Iterator[None]:
    """Have the model's attention be watched, for once."""
    before, others = attending_by(model), {}
    attend_by(model, ATTENTION)
    for module in model.modules():
        others[module] = installed(module)
        install(module, watches.get(module) or Watch())
    try:
        yield
    finally:
        for module, layer in others.items():
            uninstall(module)
            if layer is not None:
                install(module, layer)
        attend_by(model, before)
