"""A mixture's experts by the C extension, each a pair of packed linears, all of them in one call.

transformers has all experts of a layer in two tensors, and says of each class how they lie there
(`transformers.integrations.use_experts_implementation`). What chooses the experts is packed as well,
where it multiplies with a tensor of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers.pytorch_utils import Conv1D

from inference.kernels.native import Library
from inference.kernels.native_experts import ExpertsMemory, PackedExperts
from inference.models.gates import find_gating
from inference.models.linears import NativeLinear, NativePack
from inference.models.numberless import Numberless
from inference.models.quantised import LINEARS, codes_of
from inference.models.quantised_experts import (
    QuantisedExperts,
    by_turns,
    expert_codes,
    is_mixture,
    normed,
)
from inference.models.weights import NARROW, NarrowEmbedding, expert_weights, keep_narrow
from inference.quantised.codes import Codes


@dataclass(frozen=True, slots=True)
class MixtureSwap:
    """A part of a mixture that stands in another's place."""

    packed: tuple[NativeLinear, ...]
    undo: Callable[[], None]  # put the model's own back


class NativeExperts(nn.Module):
    """All experts of a layer, in one call of the C extension where it knows how they are gated."""

    def __init__(
        self, experts: nn.Module, pack: NativePack, memory: ExpertsMemory, *, frees: bool = True
    ) -> None:
        """`frees`: each weight as it is packed, or only when `free` is called."""
        super().__init__()
        self._own = (experts,)  # in a tuple: its parameters are gone
        self._dtypes = {name: each.dtype for name, each in expert_weights(experts).items()}
        first, second = self._names = tuple(self._dtypes or expert_codes(experts))
        has_norm = getattr(experts, "has_post_expert_norm", False)
        self._gating = None if has_norm else find_gating(experts)  # None: by the experts' own code
        self.up = _packed(experts, first, pack, self._alternates, frees=frees)
        self.down = _packed(experts, second, pack, frees=frees)
        self._packed: PackedExperts | None = None
        if self._gating is not None:
            up, down = ([each.packed for each in linears] for linears in (self.up, self.down))
            self._packed = PackedExperts(memory, up, down, self._gating)

    @property
    def packed(self) -> PackedExperts:
        """Return them as C computes them, which knows how they are gated."""
        assert self._packed is not None, "it was found out"
        return self._packed

    def free(self) -> None:
        """Free the weights that the model's own module still has."""
        own = self._own[0]
        for name in self._names:
            if isinstance(own, QuantisedExperts):
                own.codes[name] = []
            else:
                own._parameters.pop(name, None)

    @property
    def _alternates(self) -> bool:
        return self._gating is not None and self._gating.alternating

    def forward(self, given: Tensor, *routing: Tensor, **named: Tensor) -> Tensor:
        """Return (..., hidden) of inputs (..., hidden).

        `routing`, or `named`: the experts of each token (tokens, chosen), and how much each of them counts.
        """
        index, weights = (*routing, *named.values())
        if self._packed is None:
            return by_turns(self._expert, len(self.up), given, index, weights)
        return self._packed(given.reshape(-1, given.shape[-1]), index, weights).view(given.shape)

    def _expert(self, expert: int, x: Tensor) -> Tensor:
        own: Any = self._own[0]
        inner = self.up[expert](x)
        inner = own._apply_gate(inner) if own.has_gate else own.act_fn(inner)
        return normed(own, self.down[expert](inner))

    def restore(self) -> nn.Module:
        """Return the model's own module, with its weights in as many bits as they are packed from."""
        own = self._own[0]
        for name, linears in zip(self._names, (self.up, self.down), strict=True):
            alternates = self._alternates and linears is self.up
            if isinstance(own, QuantisedExperts):
                own.codes[name] = [_codes_of(each, alternates) for each in linears]
                continue
            weights = [each.unpack().weight.detach() for each in linears]
            kinds = {each.dtype for each in weights}
            kind = kinds.pop() if len(kinds) == 1 else self._dtypes[name]  # each is in the narrowest
            weights = [each[_alternating(len(each))] if alternates else each for each in weights]
            stacked = torch.stack([(each.T if own.is_transposed else each).to(kind) for each in weights])
            own.register_parameter(name, nn.Parameter(stacked, requires_grad=False))
            if kind in NARROW:
                keep_narrow(own)
        return own


class RouterWeight(Tensor):
    """A tensor (n, k) that a module multiplies with by `linear`, which the C extension does."""

    packed: NativeLinear

    @staticmethod
    def of(weight: Tensor, packed: NativeLinear) -> RouterWeight:
        """Return a weight in float32 that is packed, too."""
        made = weight.detach().float().as_subclass(RouterWeight)
        made.packed = packed
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func is linear and not kwargs and type(args[1]) is cls:
            given, weight, *bias = args
            if type(given) is not cls and given.dtype == torch.float32:
                found = weight.packed(given)
                return found if not bias or bias[0] is None else found + bias[0]
        if func in _WIDENINGS and type(args[0]) is cls and (*args[1:], *kwargs.values()) in _TO_FLOAT:
            return args[0]
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **kwargs)


# Packed as linears, or looked up in
_OTHERS = (*LINEARS, Conv1D, nn.Embedding, NarrowEmbedding)
_WIDENINGS = {Tensor.float, Tensor.to, Tensor.type}
_TO_FLOAT = ((), (torch.float32,))


def pack_mixtures(
    model: nn.Module, library: Library, pack: NativePack, exact: NativePack
) -> list[MixtureSwap]:
    """Replace all experts of the model, and what chooses them by `exact`; return what was done.

    Rounded, a router would choose others; it is small.
    """
    counts = {module.num_experts for module in model.modules() if is_mixture(module)}
    memory = ExpertsMemory(library)
    return [*_pack_experts(model, pack, memory), *_pack_routers(model, exact, counts)]


def undo_mixtures(swaps: list[MixtureSwap]) -> None:
    """Put the model's own parts back, freeing each that is packed as it goes."""
    while swaps:
        swaps.pop().undo()


def _pack_experts(model: nn.Module, pack: NativePack, memory: ExpertsMemory) -> Iterator[MixtureSwap]:
    for parent in list(model.modules()):
        for name, module in list(parent.named_children()):
            if not is_mixture(module):
                continue
            native = NativeExperts(module, pack, memory)
            setattr(parent, name, native)

            def undo(parent: nn.Module = parent, name: str = name, native: NativeExperts = native) -> None:
                setattr(parent, name, native.restore())

            yield MixtureSwap((*native.up, *native.down), undo)


def _packed(
    experts: nn.Module, name: str, pack: NativePack, alternates: bool = False, *, frees: bool
) -> list[NativeLinear]:
    """Return each expert's linear, and free the weights or not; `alternates`: gates and ups become halves."""
    count, outputs = experts.num_experts, _outputs(experts, name)
    biases = experts.get_parameter(f"{name}_bias").detach() if experts.has_bias else [None] * count
    order = _halves(outputs) if alternates else slice(None)
    packed = []
    for weight, bias in zip(_each(experts, name, order, frees=frees), biases, strict=True):
        packed.append(pack(weight[0], None if bias is None else bias[order], weight[1]))
    return packed


def _each(
    experts: nn.Module, name: str, order: Tensor | slice, *, frees: bool
) -> Iterator[tuple[Tensor, Codes | None]]:
    """Yield each expert's weight (n, k) with its rows in an order, and what it is in few bits."""
    if isinstance(experts, QuantisedExperts):
        several = experts.codes[name] if frees else list(experts.codes[name])
        experts.codes[name] = [] if frees else experts.codes[name]
        several.reverse()
        while several:  # freeing each that was packed
            codes = several.pop()
            yield Numberless.of(codes.shape), codes if isinstance(order, slice) else codes.pick(order)
        return
    own = experts._parameters  # as they are, not as the model's code reads them
    weights = own.pop(name) if frees else own[name]
    assert weights is not None, "they were found"
    turned = weights.detach().transpose(1, 2) if experts.is_transposed else weights.detach()
    for weight in turned:
        yield weight[order].contiguous(), None


def _codes_of(packed: NativeLinear, alternates: bool) -> Codes:
    codes = codes_of(packed.unpack())
    assert codes is not None, "it was packed of such"
    return codes.pick(_alternating(packed.packed.n)) if alternates else codes


def _halves(count: int) -> Tensor:
    """Return an order of rows in which each second one comes behind all the others."""
    return torch.cat((torch.arange(0, count, 2), torch.arange(1, count, 2)))


def _alternating(count: int) -> Tensor:
    """Return the order that turns that one back."""
    return _halves(count).argsort()


def _outputs(experts: nn.Module, name: str) -> int:
    """Return how many outputs linears of weights (experts, n, k) have, (experts, k, n) if they are turned."""
    return int(getattr(experts, name).shape[2 if experts.is_transposed else 1])


def _pack_routers(model: nn.Module, pack: NativePack, counts: Collection[Any]) -> Iterator[MixtureSwap]:
    """Pack what multiplies by itself, and has as many outputs as there are experts."""
    for module in list(model.modules()):
        weight = module._parameters.get("weight")
        if weight is None or weight.dim() != 2 or len(weight) not in counts or type(module) in _OTHERS:
            continue
        packed = pack(weight.detach(), None)
        del module._parameters["weight"]
        module.weight = RouterWeight.of(weight, packed)

        def undo(module: nn.Module = module, weight: nn.Parameter = weight) -> None:
            del module.weight
            module.register_parameter("weight", weight)

        yield MixtureSwap((packed,), undo)
