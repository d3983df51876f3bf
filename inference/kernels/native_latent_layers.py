"""Layers of a stack whose heads attend to latents (models/latent.py says how that is)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING

from torch import Tensor

from inference.kernels.native import PackedLinear
from inference.kernels.native_heads import PackedHeads
from inference.kernels.state_parts import plain

if TYPE_CHECKING:
    from inference.models.paged import LayerShape


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LatentWeights:
    """What is between the two linears of a layer that attends to latents.

    The first linear gives queries, or what `queries` makes them of once that is normalised, then a latent,
    then the `rotated` numbers of its key. A head's query is as many that are multiplied by its linear of
    `keys` (nope -> rank), then those to be rotated.
    """

    queries: PackedLinear | None
    keys: PackedHeads
    values: PackedHeads  # rank -> value
    latent_norm: Tensor  # (rank,)
    latent_eps: float
    rotated: int
    query_norm: Tensor | None = None  # with `queries`
    query_eps: float = 0.0

    @property
    def heads(self) -> int:
        """Return how many there are."""
        return len(self.keys.linears)

    @property
    def first(self) -> int:
        """Return where a latent begins in a row of what the first linear gives."""
        return self.heads * (self.keys.k + self.rotated) if self.queries is None else self.queries.k

    def check(self) -> None:
        """Assert that the parts fit each other: C would read past their ends."""
        rank = self.keys.n
        assert (len(self.values.linears), self.values.k) == (self.heads, rank), (
            "sums of latents for each head"
        )
        assert self.latent_norm.shape == (rank,), "a weight for each number"
        assert (self.queries is None) == (self.query_norm is None), "what queries are made of is normalised"
        if self.queries is not None and self.query_norm is not None:
            assert self.queries.n == self.heads * (self.keys.k + self.rotated), "a query for each head"
            assert self.query_norm.shape == (self.queries.k,), "a weight for each number"


class LatentMixerStruct(ctypes.Structure):
    """`LatentMixer` of latent_layer.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("queries", "keys", "values", "query_norm", "latent_norm")),
        *((name, ctypes.c_float) for name in ("query_eps", "latent_eps")),
        *((name, ctypes.c_int64) for name in ("heads", "nope", "rotated", "rank", "value")),
    )


class NativeLatentLayer:
    """What C is told of such a layer."""

    def __init__(self, weights: LatentWeights) -> None:
        weights.check()
        self.weights = weights
        norms = weights.query_norm, weights.latent_norm
        self._norms = [None if each is None else plain(each) for each in norms]
        queries = weights.queries
        self.struct = LatentMixerStruct(
            None if queries is None else ctypes.addressof(queries.struct),
            weights.keys.address,
            weights.values.address,
            *(None if each is None else each.data_ptr() for each in self._norms),
            *(weights.query_eps, weights.latent_eps),
            *(weights.heads, weights.keys.k, weights.rotated, weights.keys.n, weights.values.n),
        )

    def check(self, into: PackedLinear, out: PackedLinear, cache: LayerShape, rotary_dim: int) -> None:
        """Assert that linears and a cache are those around it: C would read past their ends."""
        weights = self.weights
        rank, dim = weights.keys.n, weights.keys.n + weights.rotated
        assert into.n == weights.first + dim, "queries, a latent and what is rotated"
        assert out.k == weights.heads * weights.values.n, "each head's values"
        assert (cache.kv_heads, cache.key_dim, cache.value_dim, cache.latent) == (1, dim, rank, True)
        assert rotary_dim == weights.rotated, "as many numbers are rotated"
