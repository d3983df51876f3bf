"""The likeliest tokens at each place of a prompt, in columns: there can be half a million of them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import chain

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

COUNTS, IDS, LOGPROBS = np.dtype("<i4"), np.dtype("<i4"), np.dtype("<f4")

TopTokens = tuple[tuple[int, float], ...]  # (token id, logprob), best first
Places = list[tuple[NDArray[np.int32], NDArray[np.float32]]]


class PromptTops(Struct, frozen=True, array_like=True, gc=False):
    """The likeliest tokens of places side by side, those of a place best first.

    As bytes they cross between processes without a look at any of them. Log-probabilities are rounded to
    float32, as whoever is told them gets them.
    """

    counts: bytes = b""  # how many each place has
    ids: bytes = b""  # of all places, one after another
    logprobs: bytes = b""  # beside them

    @classmethod
    def of(cls, rows: Iterable[TopTokens]) -> PromptTops:
        """Return pairs as columns."""
        rows = list(rows)
        pairs = list(chain.from_iterable(rows))
        ids, logprobs = np.array([each for each, _ in pairs], IDS), np.array([each for _, each in pairs])
        return cls(np.array([len(row) for row in rows], COUNTS).tobytes(), ids.tobytes(), rounded(logprobs))

    @classmethod
    def joined(cls, parts: Iterable[PromptTops]) -> PromptTops:
        """Return the places of several, one after another."""
        parts = list(parts)
        columns = ([part.counts for part in parts], [part.ids for part in parts], [p.logprobs for p in parts])
        return cls(*map(b"".join, columns))

    def __len__(self) -> int:
        """Return how many places there are."""
        return len(self.counts) // COUNTS.itemsize

    def places(self) -> Places:
        """Return the ids (n,) and log-probabilities (n,) of each place, views of the columns."""
        if not self.counts:
            return []
        ends = np.cumsum(np.frombuffer(self.counts, COUNTS))
        ids, logprobs = np.frombuffer(self.ids, IDS), np.frombuffer(self.logprobs, LOGPROBS)
        return list(zip(np.split(ids, ends[:-1]), np.split(logprobs, ends[:-1]), strict=True))

    def pairs(self) -> tuple[TopTokens, ...]:
        """Return what each place has as pairs, each made anew."""
        rows = ((ids.tolist(), logprobs.tolist()) for ids, logprobs in self.places())
        return tuple(tuple(zip(ids, logprobs, strict=True)) for ids, logprobs in rows)


def rounded(logprobs: NDArray[np.float64]) -> bytes:
    """Return the column of log-probabilities; what is too low for a float32 is minus infinity."""
    with np.errstate(over="ignore"):
        return logprobs.astype(LOGPROBS).tobytes()
