"""Which part of a model one of several processes computes (Shoeybi et al. 2019, Megatron-LM, section 3).

Of attention each has some heads, of the MLP some of the inner numbers, and of the head some of the
vocabulary. So of the linears q, k, v, gate and up a share is some rows, of the linears out and down some
columns, and what the shares of these give is added up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import pad

from inference.kernels.native_adapters import LowRank
from inference.models.layers import LayerParts, OtherShape
from inference.models.norms import Norms
from inference.models.paged import LayerShape, Probed
from inference.telling import counted

_UNIT = 64  # inner numbers that stay together, if there are enough: the kernels compute as many at once
Weight = tuple[Tensor, Tensor | None]  # (n, k), and a bias (n,)


@dataclass(frozen=True, slots=True)
class Share:
    """One of `count` shares of a model."""

    rank: int  # which one, from 0
    count: int

    def bounds(self, total: int, unit: int = 1) -> tuple[int, int]:
        """Return which of so many this share has, in whole units but for the last share's end."""
        units = total // unit
        first, end = (units * rank // self.count * unit for rank in (self.rank, self.rank + 1))
        return first, total if self.rank == self.count - 1 else end

    def head(self, weight: Tensor, bias: Tensor | None) -> Weight:
        """Return a head's share: rows, as many for all, where there are none left of zeros."""
        rows = -(-len(weight) // self.count)
        first, end = (min(rows * rank, len(weight)) for rank in (self.rank, self.rank + 1))
        missing = rows - (end - first)
        part = weight[first:end]
        return (
            pad(part, (0, 0, 0, missing)) if missing else part,
            None if bias is None else pad(bias[first:end], (0, missing)),
        )


class LayerShare:
    """A share of a layer."""

    def __init__(self, share: Share, parts: LayerParts, probed: Probed) -> None:
        """Raise OtherShape if the layer can't be divided so."""
        own, dim = probed.shape, probed.shape.key_dim
        for norm in (parts.norms.query, parts.norms.key):
            if norm is not None and norm.numel() != dim and not parts.norms.centred:
                raise OtherShape(
                    "it normalises what all heads ask for together, and no shard has all of them"
                )
        if parts.norms.attended is not None or parts.norms.inner is not None:
            raise OtherShape("it has norms between its linears, and no shard has all that they normalise")
        if parts.gated:
            raise OtherShape("what it attends to is gated, and gates aren't divided among shards")
        self._share = share
        self._parts = parts
        self._probed = probed
        self._keys, self._heads = _heads(share, own.kv_heads, parts.heads)
        unit = _UNIT if parts.inner // _UNIT >= 4 * share.count else 1
        self._inner = share.bounds(parts.inner, unit)
        queries, keys = parts.heads * dim, own.kv_heads * dim
        q, k = ((first * dim, end * dim) for first, end in (self._heads, self._keys))
        self._rows = (
            (q, _shifted(k, queries), _shifted(k, queries + keys)),  # of q, k and v
            None,
            (self._inner, _shifted(self._inner, parts.inner))[: 2 if parts.gates else 1],  # of gate and up
            None,
        )
        self._columns = None, q, None, self._inner  # of out and down

    @property
    def norms(self) -> Norms:
        """Return its norms: of queries and keys those of its heads, where these have weights of their own."""
        own, dim = self._parts.norms, self._probed.shape.key_dim
        query, key = (
            each[:, first * dim : end * dim]
            if each is not None and each.shape[-1] > dim and own.centred
            else each
            for each, (first, end) in ((own.query, self._heads), (own.key, self._keys))
        )
        return replace(own, query=query, key=key)

    @property
    def heads(self) -> int:
        """Return how many heads of queries it has."""
        return self._heads[1] - self._heads[0]

    @property
    def inner(self) -> int:
        """Return how many of the MLP's inner numbers it has."""
        return self._inner[1] - self._inner[0]

    @property
    def probed(self) -> Probed:
        """Return what its attention wants."""
        own = self._probed
        shape = replace(own.shape, kv_heads=self._keys[1] - self._keys[0])
        heads = slice(*self._heads)
        sinks, slopes = (None if each is None else each[heads] for each in (own.how.sinks, own.how.slopes))
        return Probed(shape, replace(own.how, sinks=sinks, slopes=slopes), self.heads)

    def weights(self) -> list[Weight]:
        """Return its share of the four linears, those computed as one together."""
        return [self._weight(place, *group.joined()) for place, group in enumerate(self._parts.linears)]

    def low_ranks(self, place: int, ranks: Sequence[LowRank]) -> list[LowRank]:
        """Return what of an adapter's low ranks for one of the four linears is its share."""
        columns, rows = self._columns[place], self._rows[place]
        if columns is not None:
            return [replace(each, down=each.down[:, slice(*columns)].contiguous()) for each in ranks]
        assert rows is not None, "it is shared by columns or by rows"
        return [part for each in ranks for part in _parts(each, rows)]

    def _weight(self, place: int, weight: Tensor, bias: Tensor | None) -> Weight:
        columns, rows = self._columns[place], self._rows[place]
        if columns is not None:  # the sum has the bias once
            return weight[:, slice(*columns)].contiguous(), bias if self._share.rank == 0 else None
        assert rows is not None, "it is shared by columns or by rows"
        parts = [slice(*each) for each in rows]
        own = None if bias is None else torch.cat([bias[each] for each in parts])
        return torch.cat([weight[each] for each in parts]), own


def kept_by_all(shape: LayerShape, shards: int) -> int:
    """Return how many numbers of a token so many shards keep, if each kept as many as the one with most."""
    most = -(-shape.kv_heads // shards)
    return shards * most * shape.head_elements


def _heads(share: Share, keys: int, queries: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """Return which heads of keys and values a share has, and which of queries; raise OtherShape.

    Several shares may have the same head of keys, and ask other things of it.
    """
    if share.count <= keys:
        first, end = share.bounds(keys)
        return (first, end), (first * queries // keys, end * queries // keys)
    if share.count % keys or queries % share.count:
        most = f"{keys} or fewer, or as many times that as" if keys > 1 else "as many as"
        raise OtherShape(
            f"it has {counted(keys, 'head')} of keys and {queries} of queries: shards can be {most} divide "
            "the latter"
        )
    first = share.rank * keys // share.count
    return (first, first + 1), share.bounds(queries)


def _parts(low: LowRank, rows: Sequence[tuple[int, int]]) -> list[LowRank]:
    """Return what low ranks add to some of a linear's outputs, which are then one behind the other."""
    found, before, last = [], 0, low.first + low.up.shape[0]
    for first, end in rows:
        start, stop = max(first, low.first), min(end, last)
        if start < stop:
            up = low.up[start - low.first : stop - low.first]
            found.append(replace(low, up=up, first=before + start - first))
        before += end - first
    return found


def _shifted(bounds: tuple[int, int], by: int) -> tuple[int, int]:
    return bounds[0] + by, bounds[1] + by
