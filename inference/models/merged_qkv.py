"""What attention does with what its linears give before it attends: in which order, and multiplied by what.

A merged linear may give queries, keys and values head by head, and queries may be multiplied before scores
are. It is found by having linears give numbers of their outputs in place of what they compute, and watching
which of them attention is given as what, by one forward. At position 0 nothing is rotated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
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
    """Stands in for a layer's cache, and keeps what attention is given of each token."""

    queries: Tensor | None = None  # (tokens, heads * dim)
    others: Tensor | None = None  # (tokens, ...): keys, then values

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
        self.queries = query.flatten(1).float().cpu()
        self.others = torch.cat([each.flatten(1) for each in (key, value)], 1).float().cpu()
        return query.new_zeros(*query.shape[:2], value.shape[2])


@torch.inference_mode()
def read_layouts(model: PreTrainedModel, linears: Mapping[nn.Module, Linears]) -> dict[nn.Module, Layout]:
    """Return the layouts of attention modules by the linears of each; raise OtherShape. Nothing is changed.

    Those where none is found are left out: whether they are in order is seen by what they compute. That
    attention isn't given what linears give, however great that is, raises: some models clip it (`clip_qkv`),
    which a proof needn't come to see, as few numbers are that great.
    """
    sizes = {attention: sum(each.sizes) for attention, each in linears.items()}
    if not sizes:
        return {}
    digits = range(_digits(max(sizes.values())))
    numbers = {attention: _numbers(n, digits) for attention, n in sizes.items()}
    found = {}
    for attention, watch in watch_attention(model, linears, numbers).items():
        if watch.queries is not None and watch.others is not None:
            _check_uncut(watch.queries, watch.others)
            found[attention] = _layout(watch.queries, watch.others, sizes[attention])
    return {attention: layout for attention, layout in found.items() if layout is not None}


def _numbers(n: int, digits: range) -> Tensor:
    """Return what outputs give of each token, (tokens, n): ones, great ones, digits of their numbers."""
    ones, outputs = torch.ones(n, dtype=torch.int64), torch.arange(n)
    return torch.stack([ones, ones * _GREAT, *(outputs // _BASE**digit % _BASE for digit in digits)])


def watch_attention(
    model: PreTrainedModel,
    linears: Mapping[nn.Module, Linears],
    numbers: Mapping[nn.Module, Tensor],
    positions: Tensor | None = None,
) -> dict[nn.Module, Watch]:
    """Return what attention is given where linears give numbers (tokens, n) of one token at positions.

    `positions`: (tokens,); None: all are 0.
    """
    watches = {attention: Watch() for attention in linears}
    tokens = len(next(iter(numbers.values())))
    with _giving(linears, numbers), _watched(model, watches):
        zeros = torch.zeros(1, tokens, dtype=torch.int64, device=model.device)
        places = zeros if positions is None else positions[None].to(model.device)
        model(input_ids=zeros, position_ids=places, use_cache=False)
    return watches


def _digits(numbers: int) -> int:
    found = 1
    while _BASE**found < numbers:
        found += 1
    return found


def _check_uncut(queries: Tensor, others: Tensor) -> None:
    for each in (queries, others):
        if not torch.allclose(each[1], each[0] * _GREAT, rtol=_NEAR):
            raise OtherShape("its queries, keys or values are clipped")


def _layout(queries: Tensor, others: Tensor, size: int) -> Layout | None:
    """Return it, of what attention was given; None if outputs aren't all there, each once."""
    if not (others[0] == 1).all():
        return None
    factor = float(queries[0, 0])
    digits = torch.cat([queries / factor, others], 1)[2:]
    whole = digits.round()
    if whole.shape[1] != size or (digits - whole).abs().max() > _NEAR * _BASE:
        return None
    straight = torch.arange(size)
    order = sum((each.long() * _BASE**at for at, each in enumerate(whole)), torch.zeros_like(straight))
    if not torch.equal(order.sort().values, straight):
        return None
    return Layout(None if torch.equal(order, straight) else order, factor)


@contextmanager
def _giving(linears: Mapping[nn.Module, Linears], numbers: Mapping[nn.Module, Tensor]) -> Iterator[None]:
    """Have linears give numbers of their outputs, and norms inside what they get."""
    with ExitStack() as stack:
        for attention, group in linears.items():
            for name, part in zip(group.names, numbers[attention].split(group.sizes, dim=1), strict=True):
                give = _giver(part)
                stack.callback(attention.get_submodule(name).register_forward_hook(give).remove)
            for name, module in attention.named_children():
                if "norm" in name:
                    stack.callback(module.register_forward_hook(_as_given).remove)
        yield


def _giver(numbers: Tensor) -> Any:
    return lambda _, __, result: numbers.to(result).reshape(result.shape).clone()


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
