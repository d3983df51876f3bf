"""Tokens of rows that have filters or penalties, chosen as the host chooses them, without sorting rows.

Of each row that has a filter few tokens are collected that can pass it: those that reach the best of
the k-th best group of neighbours, as sampling/candidates.py finds them, or all that `min_p` leaves. How
many tokens reach such a bar isn't known before: neighbours are alike, as tokenizers order by frequency. So
there are several bars, and the largest set that there is room for counts. It is sorted, filtered and
drawn from in `picking`. Where it doesn't tell, and where there is no filter, `walking` goes through
the whole row. What is collected in any order is sorted, and sums are made in one order, so a row's
token depends on that row alone. Rows without wishes cost a look at their flag.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.gpu.wishes import Wishes
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.picking import pick
from inference.kernels.gpu.scores import (
    LEAST,
    PICK,
    TOP_K,
    TOP_P,
    WALK,
    WISHES,
    heated,
    key_of,
    penalised,
    rank_of,
    score_of,
)
from inference.kernels.gpu.walking import walk

CANDIDATES = 1024  # of a set at most
_BARS = 4  # of a row, a power of two: each for half as many tokens as the one before
_BLOCK = 4096  # tokens of a program
_GROUP = 64  # neighbours whose best stands for them
_SPAN = 1024  # tokens of a program that collects
_LOWEST = tl.constexpr(float(torch.finfo(torch.float32).min))


@dataclass(frozen=True, slots=True, eq=False)
class Found:
    """What the kernels find of R rows, each for the next."""

    ways: Tensor  # (R,) int32: how a row is chosen of: PICK, WALK, or 0: not
    best: Tensor  # (R,) float32: the best logit after penalties
    bars: Tensor  # (R, _BARS) float32: what a set's tokens score at least; infinities: all, none
    totals: Tensor  # (R,) float64: the mass of all tokens, in units of the best one's
    counts: Tensor  # (R, _BARS) int32: of candidates; more than there is room for: some are missing
    candidates: Tensor  # (R, _BARS, CANDIDATES) int64: best first when sorted


def shape(logits: Tensor, wishes: Wishes, drawn: Tensor, *, candidates: int = CANDIDATES) -> None:
    """Choose anew in `drawn` (R, 2) for rows (R, V) that wish it; see inference.gpu.shaping, which it equals.

    `candidates`: of a set at most, a power of two.
    """
    if logits.stride(1) != 1:
        raise ValueError("the logits of a row must lie side by side; call contiguous() first")
    if not len(logits):
        return
    found = _collected(logits, wishes, drawn, candidates)
    pick(found, logits, wishes, drawn)
    walk(found, logits, wishes, drawn)


def _collected(logits: Tensor, wishes: Wishes, drawn: Tensor, most: int) -> Found:
    rows, vocabulary = logits.shape
    blocks = triton.cdiv(vocabulary, _BLOCK)
    device = logits.device

    def empty(*shape: int, dtype: torch.dtype) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=device)

    maxima = empty(rows, blocks * (_BLOCK // _GROUP), dtype=torch.float32)
    masses = empty(rows, blocks, dtype=torch.float32)
    found = Found(
        ways=empty(rows, dtype=torch.int32),
        best=empty(rows, dtype=torch.float32),
        bars=empty(rows, _BARS, dtype=torch.float32),
        totals=empty(rows, dtype=torch.float64),
        counts=empty(rows, _BARS, dtype=torch.int32),
        candidates=empty(rows, _BARS, most, dtype=torch.int64),
    )
    of_rows = (wishes.slots, wishes.table, wishes.temperatures)
    launch(
        _scan, (rows, blocks),
        logits, *of_rows, wishes.marks, maxima, masses, logits.stride(0), wishes.marks.stride(0), vocabulary,
        BLOCK=_BLOCK, GROUP=_GROUP, num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    launch(
        _bound, (rows,),
        *of_rows, drawn, maxima, masses, found.ways, found.best, found.bars, found.totals, found.counts,
        blocks, vocabulary, MOST=most, BARS=_BARS, BLOCKS=triton.next_power_of_2(blocks),
        GROUPS=_BLOCK // _GROUP, num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip
    launch(
        _collect, (rows, triton.cdiv(vocabulary, _SPAN)),
        logits, *of_rows, wishes.marks, maxima, found.ways, found.best, found.bars, found.counts,
        found.candidates, logits.stride(0), wishes.marks.stride(0), maxima.stride(0), vocabulary,
        MOST=most, BARS=_BARS, SPAN=_SPAN, GROUP=_GROUP, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip
    return found


@triton.jit
def _scan(
    logits_ptr, slots_ptr, wishes_ptr, temperatures_ptr, marks_ptr,
    maxima_ptr,  # (rows, blocks * groups): the best of each group of neighbours
    masses_ptr,  # (rows, blocks): in units of the block's best
    stride, marks_stride, vocabulary, BLOCK: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row, block = tl.program_id(0).to(tl.int64), tl.program_id(1)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    wishes = wishes_ptr + slot * WISHES
    if tl.load(wishes) == 0:
        return
    ids = block * BLOCK + tl.arange(0, BLOCK)
    x = penalised(logits_ptr + row * stride, marks_ptr + slot * marks_stride, wishes, ids, ids < vocabulary)
    GROUPS: tl.constexpr = BLOCK // GROUP
    at = (row * tl.num_programs(1) + block) * GROUPS + tl.arange(0, GROUPS)
    tl.store(maxima_ptr + at, tl.max(tl.reshape(x, [GROUPS, GROUP]), 1))
    best = tl.max(x, 0)
    temperature = tl.load(temperatures_ptr + slot)
    below = heated(x, best, temperature) - heated(best, best, temperature)
    mass = tl.sum(tl.exp(tl.where(x == float("-inf"), float("-inf"), below)), 0)
    tl.store(masses_ptr + row * tl.num_programs(1) + block, mass)


@triton.jit
def _bound(
    slots_ptr, wishes_ptr, temperatures_ptr, drawn_ptr, maxima_ptr, masses_ptr,
    ways_ptr, best_ptr, bars_ptr, totals_ptr, counts_ptr, blocks, vocabulary,
    MOST: tl.constexpr, BARS: tl.constexpr, BLOCKS: tl.constexpr, GROUPS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    slot = tl.load(slots_ptr + row).to(tl.int64)
    wishes = wishes_ptr + slot * WISHES
    level = tl.arange(0, BARS)
    tl.store(ways_ptr + row, 0)
    tl.store(counts_ptr + row * BARS + level, tl.zeros([BARS], tl.int32))
    if tl.load(wishes) == 0:
        return
    temperature = tl.load(temperatures_ptr + slot)
    block = tl.arange(0, BLOCKS)
    at = block[:, None] * GROUPS + tl.arange(0, GROUPS)[None, :]
    there = block < blocks
    maxima = tl.load(maxima_ptr + row * blocks * GROUPS + at, mask=there[:, None], other=float("-inf"))
    bests = tl.max(maxima, 1)
    best = tl.max(bests, 0)
    logprob = tl.load(drawn_ptr + row * 2 + 1)
    if (best == float("-inf")) | (logprob != logprob):  # not finite
        return
    # A block's masses are in units of its own best token's
    shares = tl.exp(heated(bests, best, temperature) - heated(best, best, temperature))
    masses = tl.load(masses_ptr + row * blocks + block, mask=there, other=0.0).to(tl.float64)
    total = tl.sum(masses * shares.to(tl.float64), 0)
    top_k = tl.load(wishes + TOP_K).to(tl.int32)
    ranks = tl.reshape(tl.where(maxima >= _LOWEST, rank_of(maxima), -1), [BLOCKS * GROUPS])
    groups = tl.sum((ranks >= 0).to(tl.int32), 0)
    wanted = _groups_for(MOST // 2 >> level, groups)
    # The k best are among what reaches the best of k groups; so many there may not be
    wanted = tl.where(top_k > 0, tl.minimum(top_k, tl.where(level == 0, groups, wanted)), wanted)
    wanted = tl.where(vocabulary <= MOST, groups + 1, wanted)  # there is room for all
    bar = tl.zeros([BARS], tl.int64)
    for bit in range(32):  # the largest number that so many groups reach
        higher = bar | (tl.full([], 1, tl.int64) << (31 - bit))
        reached = tl.sum((ranks[None, :] >= higher[:, None]).to(tl.int32), 1)
        bar = tl.where(reached >= wanted, higher, bar)
    bounded = heated(score_of(tl.maximum(bar, 1)), best, temperature)
    bars = tl.where(bar > 0, bounded, float("-inf"))
    limits = tl.load(wishes + TOP_P) < float("inf")
    least = tl.load(wishes + LEAST)
    likely = heated(best, best, temperature) + least.to(tl.float32)
    # What is less likely than `min_p` is of no use, but to say how much mass the k best have
    bars = tl.where(top_k > 0, bars, tl.where(limits, tl.maximum(bars, likely), likely))
    bars = tl.where((level > 0) & (bars == tl.min(bars, 0)), float("inf"), bars)  # the same set
    filtered = (top_k > 0) | limits | (least > float("-inf"))
    tl.store(ways_ptr + row, tl.where(filtered & (top_k <= MOST // 2), PICK, WALK))
    tl.store(best_ptr + row, best)
    tl.store(bars_ptr + row * BARS + level, bars)
    tl.store(totals_ptr + row, total)


@triton.jit
def _groups_for(tokens, groups):
    """Return how many groups so many of a row's best tokens are in, were they in no order.

    If that is m to each of n groups, n * exp(-m) of these have none.
    """
    some = groups * (1.0 - tl.exp(-tokens.to(tl.float32) / groups))
    return tl.maximum(some.to(tl.int32), 1)


@triton.jit
def _collect(
    logits_ptr, slots_ptr, wishes_ptr, temperatures_ptr, marks_ptr, maxima_ptr,
    ways_ptr, best_ptr, bars_ptr, counts_ptr, candidates_ptr,
    stride, marks_stride, maxima_stride, vocabulary,
    MOST: tl.constexpr, BARS: tl.constexpr, SPAN: tl.constexpr, GROUP: tl.constexpr,
):  # fmt: skip
    row, span = tl.program_id(0).to(tl.int64), tl.program_id(1)
    if tl.load(ways_ptr + row) != PICK:
        return
    slot = tl.load(slots_ptr + row).to(tl.int64)
    temperature = tl.load(temperatures_ptr + slot)
    best = tl.load(best_ptr + row)
    GROUPS: tl.constexpr = SPAN // GROUP
    maxima = tl.load(maxima_ptr + row * maxima_stride + span * GROUPS + tl.arange(0, GROUPS))
    highest = heated(tl.max(maxima, 0), best, temperature)
    if highest < tl.load(bars_ptr + row * BARS):
        return
    ids = span * SPAN + tl.arange(0, SPAN)
    wishes, marks = wishes_ptr + slot * WISHES, marks_ptr + slot * marks_stride
    x = penalised(logits_ptr + row * stride, marks, wishes, ids, ids < vocabulary)
    scores = heated(x, best, temperature)
    for level in tl.static_range(BARS):
        bar = tl.load(bars_ptr + row * BARS + level)
        if highest >= bar:
            takes = (scores >= bar) & (x > float("-inf"))
            count = tl.sum(takes.to(tl.int32), 0)
            first = tl.atomic_add(counts_ptr + row * BARS + level, count, sem="relaxed")
            at = first + tl.cumsum(takes.to(tl.int32), 0) - 1
            candidates = candidates_ptr + (row * BARS + level) * MOST
            tl.store(candidates + at, key_of(scores, ids), mask=takes & (at < MOST))
