"""A model's linears replaced by packed ones, one by one, and put back if that changed its numbers."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Container
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

from inference.kernels.arena import Arena
from inference.kernels.native import Library, PackedLinear, WeightKind, narrowest
from inference.models.numberless import Numberless
from inference.models.quantised import LINEARS, QuantisedLinear, codes_of, make_quantised
from inference.models.weights import NARROW, NarrowLinear
from inference.quantised.codes import Codes

Numbers = tuple[Tensor, Tensor | None, Codes | None]  # a weight (n, k), bias (n,), and what it is in few bits


class Pack(Protocol):
    """Makes a packed linear of a weight (n, k) and bias (n,)."""

    def __call__(self, weight: Tensor, bias: Tensor | None, codes: Codes | None = None, /) -> Packed:
        """Return it; a weight that is given in few bits, too, has no other numbers."""


class NativePack(Protocol):
    """Packs for the C extension."""

    def __call__(self, weight: Tensor, bias: Tensor | None, codes: Codes | None = None, /) -> NativeLinear:
        """Return it, as above."""


class Packed(nn.Module, ABC):
    """Stands for a linear; its weight is only there in packed form."""

    @abstractmethod
    def unpack(self) -> nn.Linear:
        """Return the linear again, with the weight it computes with."""

    @property
    @abstractmethod
    def weight(self) -> Tensor:
        """Return a weight (n, k) that may have no numbers: some models' code asks for its dtype."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """Return what the packed weight takes."""

    @property
    @abstractmethod
    def form(self) -> str:
        """Return what the weight is kept in: a dtype, and in how many bits where it is packed in fewer."""


class NativeLinear(Packed):
    """A linear of the C extension."""

    def __init__(self, packed: PackedLinear, bias: Tensor | None) -> None:
        super().__init__()
        self.packed = packed
        self._bias = bias

    def forward(self, given: Tensor) -> Tensor:
        """Return (..., n) in float32."""
        return self.packed(given)

    def unpack(self) -> nn.Linear:
        """Return the linear again; one in few bits stays so."""
        codes = self.packed.codes()
        if codes is not None:
            return make_quantised(codes, self._bias)
        return make_linear(self.packed.unpack(), self._bias)

    @property
    def weight(self) -> Tensor:
        """Return a weight (n, k) without numbers, of the dtype that it gives."""
        return Numberless.of((self.packed.n, self.packed.k))

    @property
    def nbytes(self) -> int:
        """Return what the packed weight takes."""
        return self.packed.nbytes

    @property
    def form(self) -> str:
        """Return what the weight is kept in."""
        return self.packed.kind.value


class ReorderedLinear(Packed):
    """A float32 linear in the order oneDNN computes in: small batches take half of what torch's own takes."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight.float(), 32)
        self._bias = bias
        self._shape = weight.shape

    def forward(self, given: Tensor) -> Tensor:
        """Return (..., n)."""
        result: Tensor = torch.ops.mkldnn._linear_pointwise(given, self._packed, self._bias, "none", [], "")
        return result

    def unpack(self) -> nn.Linear:
        """Return the linear again."""
        return make_linear(self._packed.to_dense(), self._bias)

    @property
    def weight(self) -> Tensor:
        """Return a weight (n, k) without numbers."""
        return Numberless.of(self._shape)

    @property
    def nbytes(self) -> int:
        """Return what the packed weight takes."""
        return self._shape.numel() * 4

    @property
    def form(self) -> str:
        """Return what the weight is kept in."""
        return "float32"


def native_pack(
    library: Library,
    kind: WeightKind | None,
    *,
    narrow: bool,
    round_inputs: bool,
    compress: bool = False,
    arena: Arena | None = None,
) -> NativePack:
    """Return what packs for the C extension: as `kind`, or in the narrowest that holds a weight exactly.

    Without `narrow` nothing is kept in 16 bits; `compress`: 12 bits instead where they hold it exactly, if
    that pays. `arena` is for what doesn't stay: its memory goes back.
    """

    def pack(weight: Tensor, bias: Tensor | None, codes: Codes | None = None, /) -> NativeLinear:
        if codes is not None:
            assert kind is None, "what is rounded isn't kept in few bits"
            found = codes.packable()
            assert found is not None, "only those are kept"
            return NativeLinear(PackedLinear.of_codes(library, found, bias, arena), bias)
        fitting = kind or (narrowest(weight) if narrow else WeightKind.FLOAT32)
        bias = None if bias is None else bias.float()
        packed = PackedLinear.pack(
            library, weight, bias, fitting, round_inputs=round_inputs, compress=compress, arena=arena
        )
        return NativeLinear(packed, bias)

    return pack


def reorder(weight: Tensor, bias: Tensor | None, codes: Codes | None = None, /) -> Packed:
    """Pack for torch alone."""
    weight = weight if codes is None else codes.expand()
    return ReorderedLinear(weight, bias)


@dataclass(frozen=True, slots=True)
class Swap:
    """One module that stands in another's place."""

    parent: nn.Module
    name: str
    packed: Packed
    turned: bool  # it stands for a Conv1D, whose weight is (k, n)
    asked: bool = False  # for its weight, by the model's code

    def undo(self) -> None:
        """Put a linear back."""
        linear = self.packed.unpack()
        if isinstance(linear, NarrowLinear):
            linear.asked = self.asked
        setattr(self.parent, self.name, _turn(linear) if self.turned else linear)


def pack_linears(model: nn.Module, pack: Pack, bypassed: Container[nn.Module] = ()) -> list[Swap]:
    """Replace every plain linear of the model, freeing each as it goes, and return what was done.

    Not the `bypassed` ones, whose weights the model's code may read by itself.
    """
    swaps: list[Swap] = []
    made: dict[int, tuple[nn.Module, Packed]] = {}  # a module can have several places; it stays alive here
    for parent in list(model.modules()):
        for name, module in list(parent._modules.items()):  # `named_children` says each only once
            if type(module) not in (*LINEARS, Conv1D):  # others compute something else
                continue
            if module in bypassed:
                continue
            if id(module) not in made:
                made[id(module)] = (module, pack(*numbers_of(module)))
            packed = made[id(module)][1]
            setattr(parent, name, packed)
            asked = isinstance(module, NarrowLinear) and module.asked
            swaps.append(Swap(parent, name, packed, type(module) is Conv1D, asked))
            drop_weight(module)
    return swaps


def numbers_of(linear: nn.Module) -> Numbers:
    """Return what a linear is packed of: its weight (n, k) and bias; if it is in few bits, these instead."""
    codes = codes_of(linear)
    if codes is None:
        return (*weight_and_bias(linear), None)
    bias = getattr(linear, "bias", None)
    return Numberless.of(codes.shape), None if bias is None else bias.detach(), codes


def weight_and_bias(linear: nn.Module) -> tuple[Tensor, Tensor | None]:
    """Return a linear's weight (n, k) and bias."""
    own = isinstance(linear, NarrowLinear)
    weight, bias = (
        linear.get_weight() if own else linear.get_parameter("weight"),
        getattr(linear, "bias", None),
    )
    return (weight.T if type(linear) is Conv1D else weight).detach(), None if bias is None else bias.detach()


def make_linear(weight: Tensor, bias: Tensor | None) -> nn.Linear:
    """Return a linear with this weight (n, k), widened as it is used if it is of 16 bits on CPU."""
    narrow = weight.dtype in NARROW and weight.device.type == "cpu"
    linear = (NarrowLinear if narrow else nn.Linear)(
        weight.shape[1], weight.shape[0], bias=bias is not None, device="meta"
    )
    linear.weight = nn.Parameter(weight, requires_grad=False)
    if bias is not None:
        linear.bias = nn.Parameter(bias, requires_grad=False)
    return linear


def drop_weight(module: nn.Module) -> None:
    """Free a weight that is packed now, although something may still hold its module."""
    module._parameters["weight"] = None
    if isinstance(module, QuantisedLinear):
        module.codes = None


def _turn(linear: nn.Linear) -> Conv1D:
    turned = Conv1D(linear.out_features, linear.in_features)
    weight = linear.weight.float() if linear.weight.device.type == "cpu" else linear.weight
    turned.weight = nn.Parameter(weight.T.contiguous(), requires_grad=False)
    if linear.bias is not None:
        turned.bias = linear.bias
    return turned


def packed_of(swaps: list[Swap]) -> tuple[Packed, ...]:
    """Return what was swapped in, each once."""
    return tuple({id(swap.packed): swap.packed for swap in swaps}.values())


def undo_swaps(swaps: list[Swap]) -> None:
    """Put the model's own linears back."""
    for swap in reversed(swaps):
        swap.undo()
