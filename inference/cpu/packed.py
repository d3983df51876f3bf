"""What the linears of a layer are once they are packed, and how they are packed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from inference.cpu.experts import NativeExperts
from inference.cpu.latents import PackedLatents
from inference.kernels.native_mixture import MixtureWeights
from inference.models.linears import NativeLinear, NativePack
from inference.models.mixture_parts import MixtureParts

if TYPE_CHECKING:
    from inference.shards.group import Group


@dataclass(frozen=True, slots=True)
class Packs:
    """How linears are packed to stay, and how to try a layer exactly."""

    final: NativePack
    exact: NativePack | None  # None: the final form is exact, and of whole layers
    routers: NativePack  # exactly, to stay: rounded, they would choose other experts
    group: Group | None = None  # of processes that have a share each of every layer
    products: NativePack | None = None  # of heads by which latents are multiplied; None: the final form


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """A layer's mixture of experts, packed."""

    parts: MixtureParts
    router: NativeLinear
    experts: NativeExperts

    @property
    def weights(self) -> MixtureWeights:
        """Return what a stack is made of."""
        return MixtureWeights(
            router=self.router.packed,
            experts=self.experts.packed,
            choosing=self.parts.choosing,
            correction=self.parts.correction,
            gated=self.parts.gate is not None,
        )

    @property
    def packed(self) -> tuple[NativeLinear, ...]:
        """Return the experts' linears."""
        return *self.experts.up, *self.experts.down


@dataclass(frozen=True, slots=True, eq=False)
class Packed:
    """A layer's linears, those that it has, and its mixture."""

    linears: tuple[NativeLinear, ...]
    mixture: Mixture | None = None
    per_layer: tuple[NativeLinear, ...] = ()  # what reads inputs of its own, and gives
    latents: PackedLatents | None = None
