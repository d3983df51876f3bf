"""A token of a whole row: of one without filters, or where too many tokens pass them to be collected.

What filters leave is a score that tokens reach at least, and how many of those that just reach it are
left, the lowest ids first. The score is found bit by bit, each time by going through the row. That is
slow, and seldom: flat rows of high temperature are such. A row without filters is gone through twice.
Weights are float32 here, as exact as the host's of whole rows, and sums float64.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.gpu.wishes import Wishes
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.scores import (
    LEAST,
    TOP_K,
    TOP_P,
    WALK,
    WISHES,
    heated,
    penalised,
    put,
    rank_of,
    score_of,
    uniform,
)

if TYPE_CHECKING:
    from inference.kernels.gpu.shaping import Found

_BLOCK = 4096  # tokens that a program looks at together: one after the other they would wait for memory


def walk(found: Found, logits: Tensor, wishes: Wishes, drawn: Tensor) -> None:
    """Choose of whole rows, where that is left to do."""
    rows, vocabulary = logits.shape
    launch(
        _walk, (rows,),
        logits, wishes.slots, wishes.table, wishes.temperatures, wishes.seeds, wishes.lengths,
        wishes.warped.view(torch.uint8), wishes.marks, found.ways, found.best, drawn,
        logits.stride(0), wishes.marks.stride(0), vocabulary, wishes.ahead,
        BLOCK=_BLOCK, num_warps=8, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit
def _scores(logits, marks, wishes, highest, temperature, first, vocabulary, BLOCK: tl.constexpr):
    """Return ids from the first on, their scores, and which of them can be chosen at all."""
    ids = first + tl.arange(0, BLOCK)
    x = penalised(logits, marks, wishes, ids, ids < vocabulary)
    return ids, heated(x, highest, temperature), x > float("-inf")


@triton.jit
def _weight_of(scores, best):
    """Return how likely tokens are in units of the best one: float64, but as exact as float32 is."""
    return tl.exp(scores - best).to(tl.float64)


@triton.jit
def _reach(
    logits, marks, wishes, highest, temperature, vocabulary, lowest, MASS: tl.constexpr, BLOCK: tl.constexpr
):
    """Return how many tokens have a rank of at least `lowest`, or their mass."""
    best = heated(highest, highest, temperature)
    total = tl.full([], 0.0, tl.float64)
    for first in range(0, vocabulary, BLOCK):
        _, scores, finite = _scores(logits, marks, wishes, highest, temperature, first, vocabulary, BLOCK)
        weights = _weight_of(scores, best) if MASS else tl.full([BLOCK], 1.0, tl.float64)
        total += tl.sum(tl.where(finite & (rank_of(scores) >= lowest), weights, 0.0), 0)
    return total


@triton.jit
def _largest(
    logits, marks, wishes, highest, temperature, vocabulary, floor, wanted,
    MASS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Return the largest rank that so many tokens reach, or tokens of so much mass, at least `floor`."""
    found = tl.full([], 0, tl.int64)
    for bit in range(32):
        higher = found | (tl.full([], 1, tl.int64) << (31 - bit))
        reached = _reach(
            logits, marks, wishes, highest, temperature, vocabulary, tl.maximum(higher, floor), MASS, BLOCK
        )
        found = tl.where(reached >= wanted, higher, found)
    return tl.maximum(found, floor)


@triton.jit
def _threshold(logits, marks, wishes, highest, temperature, vocabulary, BLOCK: tl.constexpr):
    """Return the least rank that filters leave, and how many tokens of it."""
    top_k, top_p = tl.load(wishes + TOP_K), tl.load(wishes + TOP_P)
    best = heated(highest, highest, temperature)
    lowest = tl.full([], 0, tl.int64)
    equals = tl.full([], 2147483647, tl.int32)
    if (top_k > 0) & (top_k < vocabulary):
        lowest = _largest(
            logits, marks, wishes, highest, temperature, vocabulary, lowest, top_k, False, BLOCK
        )
    if top_p < float("inf"):
        limit = top_p * _reach(logits, marks, wishes, highest, temperature, vocabulary, lowest, True, BLOCK)
        lowest = _largest(logits, marks, wishes, highest, temperature, vocabulary, lowest, limit, True, BLOCK)
        above = _reach(logits, marks, wishes, highest, temperature, vocabulary, lowest + 1, True, BLOCK)
        some = tl.ceil((limit - above) / _weight_of(score_of(lowest), best))
        equals = tl.minimum(some, 1073741824.0).to(tl.int32)
    least = tl.load(wishes + LEAST).to(tl.float32)
    if least > float("-inf"):
        likely = rank_of(best + least)
        if likely > lowest:
            lowest = likely
            equals = tl.full([], 2147483647, tl.int32)
    return lowest, equals


@triton.jit(do_not_specialize=["ahead"])
def _walk(
    logits_ptr, slots_ptr, wishes_ptr, temperatures_ptr, seeds_ptr, lengths_ptr, warped_ptr, marks_ptr,
    ways_ptr, best_ptr, drawn_ptr, stride, marks_stride, vocabulary, ahead, BLOCK: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if tl.load(ways_ptr + row) != WALK:
        return
    slot = tl.load(slots_ptr + row).to(tl.int64)
    logits, wishes = logits_ptr + row * stride, wishes_ptr + slot * WISHES
    marks = marks_ptr + slot * marks_stride
    temperature, highest = tl.load(temperatures_ptr + slot), tl.load(best_ptr + row)
    best = heated(highest, highest, temperature)
    lowest, equals = _threshold(logits, marks, wishes, highest, temperature, vocabulary, BLOCK)
    # Twice: for the mass of what is left, and for the token that passes its share of it
    position = (tl.load(lengths_ptr + slot) - ahead).to(tl.int64)
    share = uniform(tl.load(seeds_ptr + slot), position)
    mass = tl.full([], 0.0, tl.float64)
    token = tl.full([], -1, tl.int32)
    last = tl.full([], 0, tl.int32)
    for turn in range(2):
        target, before = share * mass, tl.full([], 0.0, tl.float64)
        same = tl.full([], 0, tl.int32)
        for first in range(0, vocabulary, BLOCK):
            ids, scores, finite = _scores(
                logits, marks, wishes, highest, temperature, first, vocabulary, BLOCK
            )
            ranks = rank_of(scores)
            just = finite & (ranks == lowest)
            left = (finite & (ranks > lowest)) | (just & (same + tl.cumsum(just.to(tl.int32), 0) <= equals))
            same += tl.sum(just.to(tl.int32), 0)
            weights = tl.where(left, _weight_of(scores, best), 0.0)
            edges = before + tl.cumsum(weights, 0)
            before += tl.sum(weights, 0)
            passes = left & (edges > target) & (weights > 0)
            if temperature == 0:
                passes = left & (scores == best)
            if turn == 1:
                here = tl.min(tl.where(passes, ids, 2147483647), 0)
                token = tl.where((token < 0) & (here < 2147483647), here, token)
                last = tl.maximum(last, tl.max(tl.where(left & (weights > 0), ids, 0), 0))
        mass = before
    token = tl.where(token < 0, last, token).to(tl.int64)
    one = token + tl.arange(0, 1)
    x = penalised(logits, marks, wishes, one, one >= 0)
    chosen = tl.max(heated(x, highest, temperature), 0)
    logprob = (chosen - best).to(tl.float64) - tl.log(mass)
    put(drawn_ptr + row * 2, logits, token, logprob, tl.load(warped_ptr + slot))
