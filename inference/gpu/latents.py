"""Products with each head's part of a weight, for attention over latents on a device."""

from __future__ import annotations

from collections.abc import Sequence as Several

import torch
from torch import Tensor

from inference.gpu.ops import Ops
from inference.gpu.swaps import Places, Swapped
from inference.models.latent import EXPANDED_BY, Latent, weight_of


class HeadProjection(Swapped):
    """Stands for the linear that makes all heads' keys and values of latents."""

    def __init__(self, ops: Ops, latent: Latent, dtype: torch.dtype) -> None:
        super().__init__(latent.linear)
        keys, values = latent.parts(weight_of(latent.linear).to(dtype))
        self._ops = ops
        self._keys = keys.transpose(1, 2)  # (heads, rank, nope)
        self._values = values  # (heads, value, rank)

    def forward(self, given: Tensor) -> Tensor:
        """Return what the linear itself makes: of modules whose keys and values are expanded after all."""
        found: Tensor = self.own(given)
        return found

    def absorb(self, query: Tensor) -> Tensor:
        """Return the queries of latents, (tokens, heads, rank), of (tokens, heads, nope)."""
        return self._ops.multiply_heads(query, self._keys)

    def expand(self, found: Tensor) -> Tensor:
        """Return sums of values, (tokens, heads, value), of sums of latents, (tokens, heads, rank)."""
        return self._ops.multiply_heads(found, self._values)


def swap_projections(latents: Several[Latent], ops: Ops, dtype: torch.dtype) -> Places:
    """Have each such linear be multiplied head by head, in `dtype`, and return the places.

    Of a weight in few bits all numbers are kept beside it: each head's part is multiplied by itself.
    """
    for latent in latents:
        setattr(latent.module, EXPANDED_BY, HeadProjection(ops, latent, dtype))
    return [(latent.module, EXPANDED_BY) for latent in latents]
