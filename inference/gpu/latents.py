"""Products with each head's part of a weight, for attention over latents on a device."""

from __future__ import annotations

from collections.abc import Sequence as Several

import torch
from torch import Tensor, nn

from inference.gpu.ops import Ops
from inference.models.latent import LINEAR, Latent, weight_of
from inference.models.linears import Packed, Swap, drop_weight, make_linear
from inference.models.quantised import codes_of, make_quantised


class HeadProjection(Packed):
    """Stands for the linear that made all heads' keys and values of latents.

    Of a weight in few bits all numbers are kept beside it: there is no kernel for one head's part.
    """

    def __init__(self, ops: Ops, latent: Latent, dtype: torch.dtype) -> None:
        super().__init__()
        self._ops = ops
        self._codes = codes_of(latent.linear)
        self._whole = weight_of(latent.linear).to(dtype)
        keys, values = latent.parts(self._whole)
        self._keys = keys.transpose(1, 2)  # (heads, rank, nope)
        self._values = values  # (heads, value, rank)

    def absorb(self, query: Tensor) -> Tensor:
        """Return queries of latents, (tokens, heads, rank + rotated), of (tokens, heads, nope + rotated)."""
        _, rank, nope = self._keys.shape
        made = query.new_empty(*query.shape[:2], rank + query.shape[2] - nope)
        self._ops.multiply_heads(query[..., :nope], self._keys, made[..., :rank])
        made[..., rank:] = query[..., nope:]
        return made

    def expand(self, found: Tensor) -> Tensor:
        """Return sums of values, (tokens, heads, value), of sums of latents, (tokens, heads, rank)."""
        return self._ops.multiply_heads(found, self._values)

    def unpack(self) -> nn.Linear:
        """Return the linear again."""
        if self._codes is not None:
            return make_quantised(self._codes, None, self._whole.dtype)
        return make_linear(self._whole, None)

    @property
    def weight(self) -> Tensor:
        """Return the whole weight."""
        return self._whole

    @property
    def nbytes(self) -> int:
        """Return what it takes."""
        return self._whole.nbytes

    @property
    def form(self) -> str:
        """Return what it is multiplied in."""
        return str(self._whole.dtype).removeprefix("torch.")


def swap_projections(latents: Several[Latent], ops: Ops, dtype: torch.dtype) -> list[Swap]:
    """Have each such linear be multiplied head by head, in `dtype`; return what was done."""
    swaps = []
    for latent in latents:
        linear, projection = latent.linear, HeadProjection(ops, latent, dtype)
        setattr(latent.module, LINEAR, projection)
        drop_weight(linear)
        swaps.append(Swap(latent.module, LINEAR, projection, turned=False))
    return swaps
