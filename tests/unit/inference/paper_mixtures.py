"""A layer's mixture of experts as a paper would write it, in float64; and its native form."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.kernels.choosing import Choosing
from inference.kernels.gating import Gating
from inference.kernels.native import Library, PackedLinear, WeightKind
from inference.kernels.native_experts import ExpertsMemory, PackedExperts
from inference.kernels.native_mixture import MixtureWeights

Pack = Callable[[Tensor, Tensor | None], PackedLinear]
PLAIN = Gating(gates=True, activation="silu")


@dataclass(frozen=True)
class PaperMixture:
    """The weights of a mixture, and how it chooses."""

    router: Tensor  # (experts, hidden), and with `gated` a row more
    bias: Tensor | None
    correction: Tensor | None
    choosing: Choosing
    up: Tensor  # (experts, n, hidden)
    down: Tensor  # (experts, hidden, inner)
    gating: Gating
    gated: bool

    def give(self, x: Tensor, shared: Tensor | None) -> Tensor:
        """Return what it gives of x (tokens, hidden) and of what its MLP gave of it."""
        logits = x @ self.router.double().T + (0 if self.bias is None else self.bias.double())
        count = len(self.up)
        correction = None if self.correction is None else self.correction.double()
        experts, weights = self.choosing(logits[:, :count], correction)
        if shared is None:
            found = torch.zeros_like(x)
        else:
            found = shared * (logits[:, count:].sigmoid() if self.gated else 1)
        for expert in range(count):
            own = (weights * (experts == expert)).sum(-1, keepdim=True)
            inner = self.gating(x @ self.up[expert].double().T)
            found = found + own * (inner @ self.down[expert].double().T)
        return found

    def native(self, library: Library, pack: Pack) -> MixtureWeights:
        """Return it packed, the router as it is."""
        up, down = ([pack(weight, None) for weight in weights] for weights in (self.up, self.down))
        return MixtureWeights(
            router=PackedLinear.pack(library, self.router, self.bias, WeightKind.FLOAT32),
            experts=PackedExperts(ExpertsMemory(library), up, down, self.gating),
            choosing=self.choosing,
            correction=self.correction,
            gated=self.gated,
        )


def random_mixture(
    hidden: int,
    choosing: Choosing,
    *,
    count: int = 8,
    inner: int = 32,
    gating: Gating = PLAIN,
    gated: bool = False,
    bias: bool = False,
    corrects: bool = False,
    seed: int = 0,
) -> PaperMixture:
    """Return a mixture with weights of the usual sizes."""
    generator = torch.Generator().manual_seed(100 + seed)

    def randn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=generator)

    return PaperMixture(
        router=randn(count + gated, hidden) * 2 * hidden**-0.5,
        bias=randn(count + gated) if bias else None,
        correction=randn(count) * 0.3 if corrects else None,
        choosing=choosing,
        up=randn(count, (1 + gating.gates) * inner, hidden) * hidden**-0.5,
        down=randn(count, hidden, inner) * inner**-0.5,
        gating=gating,
        gated=gated,
    )
