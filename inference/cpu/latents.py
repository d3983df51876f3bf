"""Latent attention's products by the C extension: each head's parts of kv_b_proj, packed as they are used."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from inference.kernels.native_heads import PackedHeads
from inference.kernels.native_latent_layers import LatentWeights, NativeLatentLayer
from inference.models.latent import LINEAR, Latent, weight_of
from inference.models.latent_layers import LatentParts
from inference.models.linears import NativeLinear, NativePack, Packed, Swap, drop_weight, make_linear
from inference.models.numberless import Numberless


class NativeProducts(Packed):
    """Stands for a kv_b_proj that nothing is expanded by."""

    def __init__(self, latent: Latent, pack: NativePack) -> None:
        super().__init__()
        weight = weight_of(latent.linear)
        keys, values = latent.parts(weight)
        self._shape = weight.shape
        self.keys, self.values = (
            PackedHeads([pack(part.contiguous(), None).packed for part in parts])
            for parts in (keys.transpose(1, 2), values)
        )

    def absorb(self, query: Tensor) -> Tensor:
        """Return queries of latents, (tokens, heads, rank + rotated), of (tokens, heads, nope + rotated)."""
        query, keys = query.float(), self.keys
        query = query if query.stride(2) == 1 else query.contiguous()
        made = torch.empty(*query.shape[:2], keys.n + query.shape[2] - keys.k)
        keys.multiply(query[..., : keys.k], made[..., : keys.n])
        made[..., keys.n :] = query[..., keys.k :]
        return made

    def expand(self, found: Tensor) -> Tensor:
        """Return each head's sum of values, (tokens, heads, value), of (tokens, heads, rank)."""
        found = found.contiguous()
        made = torch.empty(*found.shape[:2], self.values.n)
        self.values.multiply(found, made)
        return made

    def unpack(self) -> nn.Linear:
        """Return the linear again."""
        keys = torch.stack([each.unpack().T for each in self.keys.linears])
        values = torch.stack([each.unpack() for each in self.values.linears])
        return make_linear(torch.cat((keys, values), 1).view(self._shape), None)

    @property
    def weight(self) -> Tensor:
        """Return a weight (n, k) without numbers, of the dtype that it gives."""
        return Numberless.of(tuple(self._shape))

    @property
    def nbytes(self) -> int:
        """Return what the packed weights take."""
        return self.keys.nbytes + self.values.nbytes

    @property
    def form(self) -> str:
        """Return what the weights are kept in."""
        return self.values.linears[0].kind.value


class PackedLatents:
    """What is between the two linears of a layer that attends to latents, packed."""

    def __init__(self, parts: LatentParts, pack: NativePack, products: NativePack) -> None:
        """`products`: what packs the heads' own linears."""
        self._parts = parts
        self.products = NativeProducts(parts.latent, products)
        made = parts.queries
        self.queries: NativeLinear | None = None if made is None else pack(*made.numbers())

    @property
    def layer(self) -> NativeLatentLayer:
        """Return what a stack is made of."""
        parts, queries = self._parts, self.queries
        norm, eps = (None, 0.0) if parts.query_norm is None else parts.query_norm
        weights = LatentWeights(
            queries=None if queries is None else queries.packed,
            keys=self.products.keys,
            values=self.products.values,
            latent_norm=parts.latent_norm[0],
            latent_eps=parts.latent_norm[1],
            rotated=parts.rotated,
            query_norm=norm,
            query_eps=eps,
        )
        return NativeLatentLayer(weights)

    @property
    def linears(self) -> tuple[NativeLinear, ...]:
        """Return what is packed beside the heads' own."""
        return () if self.queries is None else (self.queries,)

    def free(self) -> None:
        """Free the model's own weights."""
        for module in self._parts.modules:
            drop_weight(module)

    def undo(self) -> None:
        """Put the model's own linears back."""
        setattr(self._parts.latent.module, LINEAR, self.products.unpack())
        if self._parts.queries is not None and self.queries is not None:
            (name,) = self._parts.queries.names
            setattr(self._parts.queries.parent, name, self.queries.unpack())


def pack_latents(latents: Sequence[Latent], pack: NativePack) -> list[Swap]:
    """Replace what latent attention multiplies by, freeing each weight as it goes; return what was done."""
    swaps = []
    for latent in latents:
        linear, packed = latent.linear, NativeProducts(latent, pack)
        setattr(latent.module, LINEAR, packed)
        drop_weight(linear)
        swaps.append(Swap(latent.module, LINEAR, packed, turned=False))
    return swaps
