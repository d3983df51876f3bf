"""Attention over whole sequences in float64, and steps that compute them piece by piece."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from numpy.typing import NDArray
from torch import Tensor

from inference.kernels.native import Library, open_library
from inference.kernels.native_attention import NativeCacheLayer, NativeStep
from inference.kernels.reference import Attention
from inference.kv_cache.blocks import blocks_for
from inference.models.paged import LayerShape
from tests.isas import ISAS as ISAS_OF_ALL

LIBRARIES = {
    (isa, threads): library
    for isa in ISAS_OF_ALL
    for threads in (1, 3)
    if (library := open_library(threads, isa)) is not None
}
ISAS = sorted({isa for isa, _ in LIBRARIES})
built = pytest.mark.skipif(not LIBRARIES, reason="the extension wasn't built")
every_library = pytest.mark.parametrize("library", LIBRARIES.values(), ids=repr)

# What keys and values are kept in, and whether all that is multiplied is rounded
FORMS = [(torch.float32, False), (torch.bfloat16, False), (torch.bfloat16, True)]
Pieces = list[tuple[int, int, int]]  # of one step: (sequence, start, stop)
Table = np.ndarray[tuple[int, int], np.dtype[np.int32]]
Limits = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Tokens:
    """One sequence: query (tokens, heads, dim), key (tokens, kv_heads, dim), value."""

    query: Tensor
    key: Tensor
    value: Tensor

    @property
    def length(self) -> int:
        """Return how many tokens it has."""
        return len(self.query)


def tokens(
    length: int, heads: int, kv_heads: int, dim: int, value_dim: int | None = None, seed: int = 0
) -> Tokens:
    """Return a random sequence; a shorter one of the same seed isn't its beginning."""
    generator = torch.Generator().manual_seed(seed * 100_003 + length)
    query = 2 * torch.randn(length, heads, dim, generator=generator)
    key, value = (
        torch.randn(length, kv_heads, each, generator=generator) for each in (dim, value_dim or dim)
    )
    return Tokens(query, key, value)


def latent_tokens(length: int, heads: int, dim: int, value_dim: int, seed: int = 0) -> Tokens:
    """Return a random sequence with one key for all heads, whose first numbers are its value."""
    made = tokens(length, heads, 1, dim, seed=seed)
    return Tokens(made.query, made.key, made.key[..., :value_dim])


def expected(sequence: Tokens, how: Attention, limits: Limits | None = None) -> Tensor:
    """Return what attention should give, (tokens, heads, value_dim), in float64.

    `limits` (tokens,) are the positions from which on each token sees nothing; None: those behind them.
    """
    group = sequence.query.shape[1] // sequence.key.shape[1]
    query = sequence.query.double()
    key, value = (each.double().repeat_interleave(group, 1) for each in (sequence.key, sequence.value))
    scores = torch.einsum("qhd,khd->hqk", query, key) * how.scaling
    if how.softcap is not None:
        scores = how.softcap * torch.tanh(scores / how.softcap)
    at = torch.arange(sequence.length)
    if how.slopes is not None:
        scores = scores - how.slopes.double()[:, None, None] * (at[:, None] - at[None, :])
    seen = at[None, :] <= at[:, None] if limits is None else at[None, :] < torch.from_numpy(limits)[:, None]
    if how.window is not None:
        seen &= at[None, :] > at[:, None] - how.window
    if how.chunk is not None:
        seen &= at[None, :] >= at[:, None] // how.chunk * how.chunk
    scores = scores.masked_fill(~seen, -torch.inf)
    if how.sinks is not None:
        sinks = how.sinks.double().view(-1, 1, 1).expand(-1, sequence.length, 1)
        scores = torch.cat([scores, sinks], -1)
    return torch.einsum("hqk,khd->qhd", scores.softmax(-1)[..., : sequence.length], value)


def page_table(lengths: list[int], spare: int, seed: int) -> Table:
    """Return (sequences, pages): pages in no order, `spare` of them nobody's."""
    wanted = [blocks_for(length) for length in lengths]
    pages = np.random.default_rng(seed).permutation(sum(wanted) + spare).astype(np.int32)
    table = np.full((len(lengths), max(wanted)), -1, dtype=np.int32)
    for row, count, first in zip(table, wanted, np.cumsum([0, *wanted]), strict=False):
        row[:count] = pages[first : first + count]
    return table


def native_step(pieces: Pieces, table: Table, limits: list[Limits] | None = None) -> NativeStep:
    """Return the step of these pieces; `limits` are those of each sequence's tokens."""
    slots, starts, stops = np.array(pieces, dtype=np.int64).T
    seen = None if limits is None else np.concatenate([limits[i][a:b] for i, a, b in pieces])
    return NativeStep(starts, stops, slots, table, seen)


def run(
    library: Library,
    sequences: list[Tokens],
    steps: list[Pieces],
    how: Attention,
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    rounded: bool = False,
    limits: list[Limits] | None = None,
) -> list[Tensor]:
    """Return each sequence's attention, computed by steps of pieces (sequence, start, stop).

    A later piece may compute again what an earlier one has. `limits` are those of each sequence's tokens.
    """
    lengths = [sequence.length for sequence in sequences]
    dims = sequences[0].key.shape[2], sequences[0].value.shape[2]
    shape = LayerShape(sequences[0].key.shape[1], *dims, how.latent)
    layer = NativeCacheLayer(library, shape, page_count(lengths, spare=2), dtype, rounded=rounded)
    layer.keys.fill_(torch.nan)  # what nobody wrote must not matter
    layer.values.fill_(torch.nan)
    table = page_table(lengths, spare=2, seed=seed)
    found = [
        torch.full((each.length, each.query.shape[1], each.value.shape[2]), torch.nan) for each in sequences
    ]
    for pieces in steps:
        parts = [
            torch.cat([getattr(sequences[i], name)[a:b] for i, a, b in pieces])
            for name in ("query", "key", "value")
        ]
        rows = layer.attend(parts[0], parts[1], parts[2], native_step(pieces, table, limits), how)
        for (i, a, b), part in zip(pieces, rows.split([b - a for _, a, b in pieces]), strict=True):
            found[i][a:b] = part
    return found


def page_count(lengths: list[int], spare: int) -> int:
    """Return how many pages `page_table` numbers."""
    return sum(blocks_for(length) for length in lengths) + spare


def whole(lengths: list[int]) -> list[Pieces]:
    """Return the one step that computes all sequences."""
    return [[(i, 0, length) for i, length in enumerate(lengths)]]


@st.composite
def steps_of(draw: st.DrawFn, lengths: list[int]) -> list[Pieces]:
    """Draw an order in which sequences advance, several in a step, by pieces of any size."""
    done = [0] * len(lengths)
    steps: list[Pieces] = []
    while any(at < length for at, length in zip(done, lengths, strict=True)):
        steps.append([])
        unfinished = [i for i, length in enumerate(lengths) if done[i] < length]
        for i in draw(st.lists(st.sampled_from(unfinished), min_size=1, unique=True)):
            left = lengths[i] - done[i]
            size = min(left, draw(st.one_of(st.just(1), st.integers(1, 60), st.just(left))))
            steps[-1].append((i, done[i], done[i] + size))
            done[i] += size
    return steps
