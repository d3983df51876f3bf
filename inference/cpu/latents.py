"""Latent attention's products by the C extension: each head's parts of kv_b_proj, packed as they are used."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from inference.kernels.native_heads import PackedHeads
from inference.models.latent import LINEAR, Latent, weight_of
from inference.models.linears import NativePack, Packed, Swap, drop_weight, make_linear
from inference.models.numberless import Numberless


class NativeProducts(Packed):
    """Stands for a kv_b_proj that nothing is expanded by."""

    def __init__(self, latent: Latent, pack: NativePack) -> None:
        super().__init__()
        weight = weight_of(latent.linear)
        keys, values = latent.parts(weight)
        self._shape = weight.shape
        self._keys, self._values = (
            PackedHeads([pack(part.contiguous(), None).packed for part in parts])
            for parts in (keys.transpose(1, 2), values)
        )

    def absorb(self, query: Tensor) -> Tensor:
        """Return queries of latents, (tokens, heads, rank + rotated), of (tokens, heads, nope + rotated)."""
        query, keys = query.float(), self._keys
        query = query if query.stride(2) == 1 else query.contiguous()
        made = torch.empty(*query.shape[:2], keys.n + query.shape[2] - keys.k)
        keys.multiply(query[..., : keys.k], made[..., : keys.n])
        made[..., keys.n :] = query[..., keys.k :]
        return made

    def expand(self, found: Tensor) -> Tensor:
        """Return each head's sum of values, (tokens, heads, value), of (tokens, heads, rank)."""
        found = found.contiguous()
        made = torch.empty(*found.shape[:2], self._values.n)
        self._values.multiply(found, made)
        return made

    def unpack(self) -> nn.Linear:
        """Return the linear again."""
        keys = torch.stack([each.unpack().T for each in self._keys.linears])
        values = torch.stack([each.unpack() for each in self._values.linears])
        return make_linear(torch.cat((keys, values), 1).view(self._shape), None)

    @property
    def weight(self) -> Tensor:
        """Return a weight (n, k) without numbers, of the dtype that it gives."""
        return Numberless.of(tuple(self._shape))

    @property
    def nbytes(self) -> int:
        """Return what the packed weights take."""
        return self._keys.nbytes + self._values.nbytes

    @property
    def form(self) -> str:
        """Return what the weights are kept in."""
        return self._values.linears[0].kind.value


def pack_latents(latents: Sequence[Latent], pack: NativePack) -> list[Swap]:
    """Replace what latent attention multiplies by, freeing each weight as it goes; return what was done."""
    swaps = []
    for latent in latents:
        linear, packed = latent.linear, NativeProducts(latent, pack)
        setattr(latent.module, LINEAR, packed)
        drop_weight(linear)
        swaps.append(Swap(latent.module, LINEAR, packed, turned=False))
    return swaps
