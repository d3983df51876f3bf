"""Steps of several sequences over a paged cache, as paged attention takes them, and what it should return."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from inference.gpu.batch import DeviceBatch
from inference.kernels.gpu.attention import paged_attention
from inference.kernels.gpu.latent import latent_attention
from inference.kernels.gpu.latent_tiles import LatentTiles
from inference.kernels.gpu.tiles import Tiles
from inference.kernels.reference import Attention
from inference.kv_cache.blocks import PAGE
from tests.unit.inference.paged_attention import Pieces, Tokens, expected, page_count, page_table, tokens
from tests.unit.inference.triton_device import DEVICE

SMALL = Tiles(16, 4, 2)  # borders of blocks are soon reached, and the interpreter is quick
TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
PADDING = (-1, 0, 1)  # a piece of a step that is a graph's padding


@dataclass(frozen=True, slots=True)
class Cut:
    """How a step is cut into programs."""

    tile: int = 1
    splits: int = 1
    tiles: Tiles | LatentTiles | None = SMALL


class Paper:
    """Sequences, and a cache that has NaN wherever nothing of theirs was written."""

    def __init__(
        self, sequences: list[Tokens], dtype: torch.dtype = torch.float32, table: Tensor | None = None
    ) -> None:
        self.sequences = [rounded(sequence, dtype) for sequence in sequences]
        self.dtype = dtype
        lengths = [sequence.length for sequence in sequences]
        pages = torch.from_numpy(page_table(lengths, 2, seed=1)) if table is None else table
        self.table = pages.flip(0)  # so that a sequence isn't its own slot
        self.blocks = max(page_count(lengths, 2), int(self.table.max()) + 1)

    def pages(self, index: int) -> Tensor:
        """Return the pages of a sequence."""
        return self.table[len(self.table) - 1 - index]

    def attend(self, pieces: Pieces, how: Attention, cut: Cut, hidden: int = 0) -> Tensor:
        """Return (T, H, Dv) of one step, in float64; pages before position `hidden` belong to others."""
        first = self.sequences[0]
        kind = {"device": DEVICE, "dtype": self.dtype}
        keys, values = self.filled(pieces, hidden)
        query = torch.cat(
            [self.sequences[index].query[start:stop] if index >= 0 else first.query[:1] * torch.nan
             for index, start, stop in pieces]
        )  # fmt: skip
        if how.sinks is not None:
            how = replace(how, sinks=how.sinks.to(**kind))
        out = torch.full((*query.shape[:2], values.shape[3]), torch.inf, **kind)
        batch = self.batch(pieces, cut)
        found = self._compute(query.to(**kind), keys, values, batch, how, cut, out)
        assert found.data_ptr() == out.data_ptr()
        return found.cpu().double()

    def filled(self, pieces: Pieces, hidden: int = 0) -> tuple[Tensor, Tensor]:
        """Return the cache with what the sequences of a step have in it, from position `hidden` on."""
        kind = {"device": DEVICE, "dtype": self.dtype}
        keys, values = self._empty_cache(self.sequences[0])
        for index, _, stop in pieces:
            if index >= 0:
                places = self.places(index, stop)[hidden:].to(DEVICE)
                keys.flatten(0, 1)[places] = self.sequences[index].key[hidden:stop].to(**kind)
                values.flatten(0, 1)[places] = self.sequences[index].value[hidden:stop].to(**kind)
        return keys, values

    def _empty_cache(self, like: Tokens) -> tuple[Tensor, Tensor]:
        kind = {"device": DEVICE, "dtype": self.dtype}
        keys, values = (
            torch.full((self.blocks, PAGE, *each.shape[1:]), torch.nan, **kind)
            for each in (like.key, like.value)
        )
        return keys, values

    def _compute(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        batch: DeviceBatch,
        how: Attention,
        cut: Cut,
        out: Tensor,
    ) -> Tensor:
        assert cut.tiles is None or isinstance(cut.tiles, Tiles)
        return paged_attention(query, keys, values, batch, how, tiles=cut.tiles, out=out)

    def places(self, index: int, stop: int) -> Tensor:
        """Return where the first `stop` tokens of a sequence are in the cache."""
        return (self.pages(index)[:, None].long() * PAGE + torch.arange(PAGE)).flatten()[:stop]

    def batch(self, pieces: Pieces, cut: Cut) -> DeviceBatch:
        """Return what the kernel is told; one query block more than there are, which is none."""
        sizes = [stop - start for _, start, stop in pieces]
        blocks = [(row, first) for row, size in enumerate(sizes) for first in range(0, size, cut.tile)]
        nothing = torch.empty(0, device=DEVICE, dtype=torch.int64)
        return DeviceBatch(
            ids=nothing,
            positions=nothing,
            places=nothing,
            tables=self.table.to(DEVICE, torch.int32),
            slots=ints([max(len(self.table) - 1 - index, 0) if index >= 0 else 0 for index, *_ in pieces]),
            starts=ints(np.cumsum([0, *sizes]).tolist()),
            lengths=ints([stop if index >= 0 else 0 for index, _, stop in pieces]),
            query_blocks=ints([*blocks, (-1, -1)]).T.contiguous(),
            tile=cut.tile,
            rows=None,
            longest=max(sizes),
            splits=cut.splits,
        )

    def expected(self, pieces: Pieces, how: Attention) -> Tensor:
        """Return what attention over whole sequences in float64 says; zeros for padding."""
        whole = {index: expected(self.sequences[index], how) for index, *_ in pieces if index >= 0}
        shape = next(iter(whole.values())).shape[1:]
        zeros = torch.zeros(1, *shape, dtype=torch.float64)
        return torch.cat([whole[i][start:stop] if i >= 0 else zeros for i, start, stop in pieces])

    def check(self, pieces: Pieces, how: Attention, cut: Cut) -> None:
        """Assert that a step gives what it should."""
        found, wanted = self.attend(pieces, how, cut), self.expected(pieces, how)
        error = (found - wanted).abs() / (wanted.abs() + 1)
        assert error.max() <= TOLERANCES[self.dtype]


class LatentPaper(Paper):
    """Sequences whose values are the first numbers of their keys, and are kept there."""

    def _empty_cache(self, like: Tokens) -> tuple[Tensor, Tensor]:
        keys, _ = super()._empty_cache(like)
        return keys, keys[..., : like.value.shape[2]]

    def _compute(
        self,
        query: Tensor,
        keys: Tensor,
        values: Tensor,
        batch: DeviceBatch,
        how: Attention,
        cut: Cut,
        out: Tensor,
    ) -> Tensor:
        assert cut.tiles is None or isinstance(cut.tiles, LatentTiles)
        return latent_attention(query, keys, values.shape[3], batch, how, tiles=cut.tiles, out=out)


def latents(length: int, heads: int, latent: int, turned: int, seed: int = 0) -> Tokens:
    """Return a random sequence of them."""
    made = tokens(length, heads, 1, latent + turned, seed=seed)
    return Tokens(made.query, made.key, made.key[..., :latent])


def rounded(sequence: Tokens, dtype: torch.dtype) -> Tokens:
    """Return a sequence of numbers that `dtype` has."""
    return Tokens(*(each.to(dtype).float() for each in (sequence.query, sequence.key, sequence.value)))


def ints(numbers: list[int] | list[tuple[int, int]]) -> Tensor:
    """Return them as the kernel takes them."""
    return torch.tensor(numbers, dtype=torch.int32, device=DEVICE)
