"""The likeliest tokens of each row, found without sorting the vocabulary, and what filters leave of them.

What a row gets depends on that row alone. Everywhere n is rows, v the vocabulary, m candidates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.sampling.filters import (
    Floats,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical_p,
    least_likely,
    weights,
)
from inference.sampling.rows import block_sums, softmax
from inference.sequences.state import Integers

_NONE = np.uint64(2**64 - 1)  # where a row has fewer candidates than others
_BLOCK = 64  # tokens whose best one stands for them
_FIRST = 64  # candidates looked at first where a filter doesn't say how many it keeps
_MORE = 8  # times as many, where those were too few


@dataclass(frozen=True, slots=True)
class Filters:
    """The filters of n rows; the values in parentheses are off."""

    top_k: Integers  # (0)
    top_p: Floats  # (infinity)
    min_p: Floats  # (0)
    typical_p: Floats  # (infinity)

    @property
    def bound(self) -> NDArray[np.bool_]:
        """Return which rows (n,) have a filter that keeps only some of the best tokens."""
        return (self.top_k > 0) | np.isfinite(self.top_p) | (self.min_p > 0)

    @property
    def any(self) -> NDArray[np.bool_]:
        """Return which rows (n,) have a filter."""
        return self.bound | np.isfinite(self.typical_p)

    def of(self, rows: NDArray[np.int64]) -> Filters:
        """Return those of some of the rows."""
        return Filters(self.top_k[rows], self.top_p[rows], self.min_p[rows], self.typical_p[rows])


@dataclass(frozen=True, slots=True)
class Candidates:
    """Tokens of n rows, best first, those of equal score by their ids; at most m of a row."""

    ids: Integers  # (n, m)
    scores: Floats  # (n, m); minus infinity: removed, or none

    def totals(self) -> Floats:
        """Return the logarithm of each row's mass (n,)."""
        best = self.scores.max(1)
        with np.errstate(invalid="ignore", divide="ignore"):
            return best + np.log(np.exp(self.scores - best[:, None]).cumsum(1)[:, -1])

    def first(self) -> tuple[Integers, Floats]:
        """Return the best token left in each row, and its score."""
        at = self.scores.argmax(1)[:, None]
        return _pick(self.ids, at), _pick(self.scores, at)

    def draw(self, noise: Floats) -> tuple[Integers, Floats]:
        """Return a token of each row's distribution, and its score.

        It is the first by id whose cumulative mass passes the `noise` (n,), of [0, 1).
        """
        order = np.argsort(self.ids, axis=1, kind="stable")
        ids, scores = (np.take_along_axis(each, order, axis=1) for each in (self.ids, self.scores))
        with np.errstate(invalid="ignore"):
            mass = np.exp(scores - scores.max(1, keepdims=True)).cumsum(1)
        passed = (mass <= (noise * mass[:, -1])[:, None]).sum(1)
        at = np.minimum(passed, ids.shape[1] - 1)[:, None]
        return _pick(ids, at), _pick(scores, at)


def _pick(table: NDArray[Any], at: Integers) -> NDArray[Any]:
    """Return what stands at one place (n, 1) of each row."""
    return np.take_along_axis(table, at, axis=1)[:, 0]


def filtered(scores: Tensor, filters: Filters) -> Candidates:
    """Return what the filters leave of the tokens of `scores` (n, v)."""
    alone = np.isfinite(filters.typical_p) & ~filters.bound
    if not alone.any():
        return _search(scores, filters)
    rows = alone.nonzero()[0]
    found = _typical(scores[_at(rows, scores)], filters.typical_p[rows])
    if alone.all():
        return found
    others = (~alone).nonzero()[0]
    left = _search(scores[_at(others, scores)], filters.of(others))
    empty = Candidates(np.zeros((len(scores), 1), dtype=np.int64), np.full((len(scores), 1), -np.inf))
    return _replaced(_replaced(empty, others, left), rows, found)


def best(scores: Tensor, counts: Integers) -> Candidates:
    """Return at least the `counts` (n,) best tokens of each row of `scores` (n, v), and ties with the last.

    Each row's blocks are searched that hold something as good as the best of its `counts`-th best
    block: there are that many tokens at least, and seldom many more.
    """
    rows, ids = _at_least(scores, _bars(scores, counts))
    return _ranked(len(scores), rows, ids, scores[_at(rows, scores), _at(ids, scores)].float().cpu().numpy())


def _bars(scores: Tensor, counts: Integers) -> NDArray[np.float32]:
    """Return a score (n,) that `counts` (n,) tokens of each row reach, finite: removed tokens don't."""
    blocks = scores.shape[1] // _BLOCK
    bars = np.full(len(scores), np.finfo(np.float32).min, dtype=np.float32)
    some = (~_is_all(scores, counts)).nonzero()[0]
    if len(some):
        tops = scores[:, : blocks * _BLOCK].unflatten(1, (blocks, _BLOCK)).amax(2).float().cpu().numpy()
        bars[some] = np.maximum(
            np.sort(tops[some], axis=1)[np.arange(len(some)), blocks - counts[some]], bars[some]
        )
    return bars


def _is_all(scores: Tensor, counts: Integers) -> NDArray[np.bool_]:
    """Return for which `counts` (n,) `best` leaves no token out: there are fewer blocks."""
    return counts > scores.shape[1] // _BLOCK


def _at_least(scores: Tensor, bars: NDArray[np.float32]) -> tuple[Integers, Integers]:
    """Return the rows and ids of the tokens that reach their row's bar, in order."""
    if scores.device.type == "cpu":
        flat = np.flatnonzero(scores.numpy() >= bars[:, None])
        return np.divmod(flat, scores.shape[1])
    rows, ids = (scores >= torch.from_numpy(bars).to(scores.device)[:, None]).nonzero(as_tuple=True)
    return rows.cpu().numpy(), ids.cpu().numpy()


def _search(scores: Tensor, filters: Filters) -> Candidates:
    """Look at few candidates, and at more in the rows where the filters need more."""
    wanted = np.where(filters.top_k > 0, filters.top_k, _FIRST)
    totals = _totals(scores, (filters.top_k == 0) & np.isfinite(filters.top_p))
    left, enough = _keep(best(scores, wanted), filters, totals, _is_all(scores, wanted))
    while not enough.all():
        short = (~enough).nonzero()[0]
        wanted[short] *= _MORE
        found = best(scores[_at(short, scores)], wanted[short])
        more, now = _keep(found, filters.of(short), totals[short], _is_all(scores, wanted[short]))
        left, enough[short] = _replaced(left, short, more), now
    return left


def _typical(scores: Tensor, p: Floats) -> Candidates:
    """Return what typical sampling leaves of whole rows, looking at the most typical tokens first."""
    logprobs = softmax(scores, logs=True)
    information = block_sums((logprobs.exp() * -logprobs).nan_to_num(nan=0.0))  # 0 * inf is no information
    entropy = torch.from_numpy(information.cumsum(1)[:, -1:]).to(scores)
    typicality = -(-logprobs - entropy).abs()
    wanted = np.full(len(scores), _FIRST * _MORE)
    while True:
        found = best(typicality, wanted)
        at = _at(found.ids, scores)
        present = np.isfinite(found.scores)
        mass = np.where(present, logprobs.gather(1, at).double().exp().cpu().numpy(), 0.0)
        edges = mass.cumsum(1)
        if (edges[:, -1] >= p).all() or _is_all(scores, wanted).all():
            break
        wanted *= _MORE
    kept = present & (edges - mass < p[:, None])
    left = np.where(kept, scores.gather(1, at).double().cpu().numpy(), -np.inf)
    order = np.lexsort((found.ids, -left))
    return Candidates(np.take_along_axis(found.ids, order, 1), np.take_along_axis(left, order, 1))


def _ranked(count: int, rows: Integers, ids: Integers, values: NDArray[np.float32]) -> Candidates:
    """Return the (row, id, value) given, in order of rows, as candidates.

    What is sorted are numbers of 64 bits that hold both, value and id: that takes a tenth of the
    time of a stable sort of values, and puts equals in the order of their ids just as well.
    """
    sizes = np.bincount(rows, minlength=count)
    at = np.arange(len(rows)) - np.repeat(sizes.cumsum() - sizes, sizes)
    keys = np.full((count, max(int(sizes.max()), 1)), _NONE)
    bits = (values + np.float32(0)).view(np.int32)  # of floats: as ordered as they are, but for the sign
    falling = np.where(bits < 0, bits, ~bits & 0x7FFFFFFF).view(np.uint32)
    keys[rows, at] = falling.astype(np.uint64) << np.uint64(32) | ids.astype(np.uint64)
    keys.sort(axis=1)
    falling = (keys >> np.uint64(32)).astype(np.uint32).view(np.int32)
    values = np.where(falling < 0, falling, ~falling & 0x7FFFFFFF).view(np.float32)
    scores = np.where(keys == _NONE, -np.inf, values.astype(np.float64))
    return Candidates((keys & np.uint64(0xFFFFFFFF)).astype(np.int64) * (keys != _NONE), scores)


def _at(rows: Integers, like: Tensor) -> Tensor:
    return torch.from_numpy(rows).to(like.device)


def _totals(scores: Tensor, wanted: NDArray[np.bool_]) -> Floats:
    """Return the mass of each whole row in units of its best token's (n,), for the rows that want it."""
    totals = np.ones(len(scores))
    if wanted.any():
        rows = scores if wanted.all() else scores[torch.from_numpy(wanted).to(scores.device)]
        totals[wanted] = 1 / softmax(rows).amax(1).double().cpu().numpy()
    return totals


def _keep(
    found: Candidates, filters: Filters, totals: Floats, complete: NDArray[np.bool_]
) -> tuple[Candidates, NDArray[np.bool_]]:
    """Return what the filters leave, and of which rows (n,) the candidates were enough to say so."""
    scores = keep_top_k(found.scores, filters.top_k)
    mass = weights(scores).cumsum(1)[:, -1]
    totals = np.where(filters.top_k > 0, mass, totals)
    worst = np.where(np.isfinite(scores), scores, np.inf).min(1)
    bounded = worst < least_likely(scores, filters.min_p)
    enough = complete | (filters.top_k > 0) | (mass >= filters.top_p * totals) | bounded
    enough |= ~np.isfinite(scores[:, 0])  # nothing will help such a row
    scores = keep_min_p(keep_top_p(scores, filters.top_p, totals), filters.min_p)
    typical = np.isfinite(filters.typical_p).nonzero()[0]
    if len(typical):
        scores[typical] = keep_typical_p(scores[typical], filters.typical_p[typical])
    width = int(np.flatnonzero(np.isfinite(scores).any(0)).max(initial=0)) + 1
    return Candidates(found.ids[:, :width], scores[:, :width]), enough


def _replaced(left: Candidates, rows: Integers, more: Candidates) -> Candidates:
    """Return `left` with some of its rows replaced."""
    width = max(left.ids.shape[1], more.ids.shape[1])
    ids, scores = np.zeros((len(left.ids), width), dtype=np.int64), np.full((len(left.ids), width), -np.inf)
    ids[:, : left.ids.shape[1]], scores[:, : left.ids.shape[1]] = left.ids, left.scores
    scores[rows] = -np.inf
    ids[rows, : more.ids.shape[1]], scores[rows, : more.ids.shape[1]] = more.ids, more.scores
    return Candidates(ids, scores)
