"""What a forward pass on a device is told, and what the choice of tokens is given and gives."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor


@dataclass(frozen=True, slots=True, eq=False)
class ImagePlaces:
    """The tokens of a step that stand for rows of images."""

    at: Tensor  # (k,) int64
    rows: Tensor  # (k, hidden) float32: what the first layer is given
    embedded: Tensor  # (k, hidden): what the language model is given; the same one, mostly


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DeviceBatch:
    """One step: T tokens of n sequences, packed in one row; index tensors are int32 where nothing is said."""

    ids: Tensor  # (T,) int64
    positions: Tensor  # (T,) int64
    places: Tensor  # (T,) int64: page * PAGE + offset of its keys and values; -1: a graph's padding, nowhere
    tables: Tensor  # (slots, pages): the pages of every slot's sequence, from position 0 on
    slots: Tensor  # (n,): each sequence's row of `tables`
    starts: Tensor  # (n + 1,): where each sequence's tokens begin among the T
    lengths: Tensor  # (n,): tokens of the sequence with those of this step; 0: padding, its result is zeros
    query_blocks: Tensor  # (2, q): the sequence, and its first query, of each program; -1: none
    tile: int  # queries of one such program
    rows: Tensor | None  # (R,) int64: the tokens whose logits are wanted; None: all
    longest: int  # most tokens of one sequence; 1: only decodes
    splits: int  # of the keys in attention
    adapters: Tensor | None = None  # (T,): which computes each token, -1: none; None: of all
    images: ImagePlaces | None = None  # None: no token stands for a part of an image


@dataclass(frozen=True, slots=True, eq=False)
class Draws:
    """How the tokens of R rows of logits are chosen."""

    seeds: Tensor  # (R,) int64
    positions: Tensor  # (R,) int64: of the token to be chosen; noise is a function of seed, position and id
    temperatures: Tensor  # (R,) float32; 0: the likeliest token
    warped: Tensor  # (R,) bool: log-probabilities are after temperature, not the model's own


@dataclass(frozen=True, slots=True, eq=False)
class Sampled:
    """The tokens chosen for R rows."""

    tokens: Tensor  # (R,) int64
    logprobs: Tensor  # (R,) float32
    finite: Tensor  # (R,) bool: the row held numbers only


def query_blocks(sizes: NDArray[np.int64], tile: int) -> NDArray[np.int64]:
    """Return (2, q): the sequence and the first query of each tile of at most `tile` of its queries (n,)."""
    counts = -(-sizes // tile)
    before = np.cumsum(counts) - counts
    owners = np.repeat(np.arange(len(sizes)), counts)
    return np.stack([owners, (np.arange(counts.sum()) - before[owners]) * tile])
