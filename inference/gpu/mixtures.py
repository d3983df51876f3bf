"""A mixture's layer on a device: its experts' weights, and which tokens go to which of them."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.quantised.blocks import Blocks
from inference.quantised.codes import Codes, join


@dataclass(frozen=True, slots=True, eq=False)
class Routing:
    """Which experts compute which tokens, as pairs of both: `token * chosen + choice`."""

    index: Tensor  # (tokens, chosen) integers, rows side by side: of experts; others than there are: of none
    experts: int
    order: Tensor | None = None  # (pairs,) int32: pairs by expert, each one's by token; None: as they come
    places: Tensor | None = None  # (pairs,) int32: where each pair is in that order; -1: nobody computes it
    begins: Tensor | None = None  # (experts + 1,) int32: where each expert's pairs begin in it; then its end

    @property
    def chosen(self) -> int:
        """Return how many experts a token has."""
        return self.index.shape[1]

    @property
    def pairs(self) -> int:
        """Return how many there are, with those that nobody computes."""
        return self.index.numel()


@dataclass(frozen=True, slots=True, eq=False)
class ExpertWeight:
    """One linear of all experts of a layer."""

    numbers: Tensor | Blocks  # (experts, n, k), however it lies; in few bits (experts * n, k)
    experts: int
    bias: Tensor | None = None  # (experts, n), in the dtype that is computed in

    @staticmethod
    def of_codes(
        codes: Several[Codes], dtype: torch.dtype, bias: Tensor | None = None
    ) -> ExpertWeight | None:
        """Return experts in few bits, None if they are unlike."""
        joined = join(codes)
        return None if joined is None else ExpertWeight(Blocks.of(joined, dtype), len(codes), bias)

    @property
    def outputs(self) -> int:
        """Return n."""
        return self.numbers.shape[-2] // (self.experts if isinstance(self.numbers, Blocks) else 1)

    @property
    def inputs(self) -> int:
        """Return k."""
        return self.numbers.shape[-1]

    @property
    def dtype(self) -> torch.dtype:
        """Return what is computed in."""
        return self.numbers.dtype

    @property
    def device(self) -> torch.device:
        """Return where it is."""
        return self.numbers.device

    @property
    def nbytes(self) -> int:
        """Return what it takes."""
        return self.numbers.nbytes

    @property
    def form(self) -> tuple[int, ...]:
        """Return all that a kernel's time depends on."""
        numbers = self.numbers
        own = numbers.form if isinstance(numbers, Blocks) else (*numbers.shape, *numbers.stride())
        return (self.experts, *own)

    def expert(self, index: int) -> Tensor:
        """Return one expert's weight (n, k), expanded."""
        numbers, size = self.numbers, self.outputs
        if isinstance(numbers, Tensor):
            return numbers[index]
        return numbers.split([index * size, size])[1].expand()
