"""A token of a row's candidates: sorted, filtered and drawn from as sampling/candidates.py does it."""

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
    PICK,
    TOP_K,
    TOP_P,
    WALK,
    WISHES,
    heated,
    put,
    rank_of,
    score_of,
    score_of_key,
    uniform,
    weight_of,
)

if TYPE_CHECKING:
    from inference.kernels.gpu.shaping import Found


def pick(found: Found, logits: Tensor, wishes: Wishes, drawn: Tensor) -> None:
    """Choose of the candidates, but of rows of which they don't tell enough: these are to be walked."""
    rows, bars, most = found.candidates.shape
    launch(
        _pick, (rows,),
        logits, wishes.slots, wishes.table, wishes.temperatures, wishes.seeds, wishes.lengths,
        wishes.warped.view(torch.uint8), found.ways, found.best, found.bars, found.totals, found.counts,
        found.candidates, drawn, logits.stride(0), wishes.ahead,
        MOST=most, BARS=bars, num_warps=4, enable_fp_fusion=False,
    )  # fmt: skip


@triton.jit(do_not_specialize=["ahead"])
def _pick(
    logits_ptr, slots_ptr, wishes_ptr, temperatures_ptr, seeds_ptr, lengths_ptr, warped_ptr,
    ways_ptr, best_ptr, bars_ptr, totals_ptr, counts_ptr, candidates_ptr, drawn_ptr, stride, ahead,
    MOST: tl.constexpr, BARS: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    if tl.load(ways_ptr + row) != PICK:
        return
    slot = tl.load(slots_ptr + row).to(tl.int64)
    wishes = wishes_ptr + slot * WISHES
    temperature = tl.load(temperatures_ptr + slot)
    highest = tl.load(best_ptr + row)
    best = heated(highest, highest, temperature)
    # Each set holds the next one; the first that there is room for tells most
    level = tl.arange(0, BARS)
    counts, bars = tl.load(counts_ptr + row * BARS + level), tl.load(bars_ptr + row * BARS + level)
    level = tl.min(tl.where((counts <= MOST) & (bars < float("inf")), level, BARS), 0)
    if level == BARS:
        tl.store(ways_ptr + row, WALK)
        return
    whole = row * BARS + level
    bar, count = tl.load(bars_ptr + whole), tl.load(counts_ptr + whole)
    at = tl.arange(0, MOST)
    there = at < count
    none = tl.full([], 9223372036854775807, tl.int64)
    keys = tl.sort(tl.load(candidates_ptr + whole * MOST + at, mask=there, other=none))
    scores = tl.where(there, score_of_key(keys), float("-inf"))
    top_k = tl.load(wishes + TOP_K).to(tl.int32)
    last = tl.max(tl.where(at == tl.minimum(top_k, MOST) - 1, scores, float("-inf")), 0)
    left = there & ((top_k == 0) | (scores >= last))
    weights = tl.where(left, weight_of(scores, best), 0.0)
    edges = tl.cumsum(weights, 0)
    mass = tl.sum(weights, 0)
    limit = tl.load(wishes + TOP_P) * tl.where(top_k > 0, mass, tl.load(totals_ptr + row))
    lowest = best + tl.load(wishes + LEAST).to(tl.float32)
    # All that can pass is there: all there is, the k best, so much mass, or all that is so likely
    enough = tl.where(top_k > 0, count >= top_k, (mass >= limit) | (bar <= lowest))
    enough = enough | (bar == float("-inf"))
    if enough == 0:
        tl.store(ways_ptr + row, WALK)
        return
    left = left & (edges - weights < limit) & (scores >= lowest)
    token = tl.min(keys, 0) & 2147483647
    chosen = best
    ids = tl.where(left, ((keys & 2147483647) << 32) | rank_of(scores), none)
    ids = tl.sort(ids)
    scores = score_of(ids & 4294967295)
    weights = tl.where(ids != none, weight_of(scores, best), 0.0)
    edges = tl.cumsum(weights, 0)
    mass = tl.sum(weights, 0)
    if temperature > 0:
        position = (tl.load(lengths_ptr + slot) - ahead).to(tl.int64)
        target = uniform(tl.load(seeds_ptr + slot), position) * mass
        passed = tl.sum(((ids != none) & (edges <= target)).to(tl.int32), 0)
        place = tl.minimum(passed, tl.sum((ids != none).to(tl.int32), 0) - 1)
        token = tl.sum(tl.where(at == place, ids >> 32, 0), 0)
        chosen = tl.max(tl.where(at == place, scores, float("-inf")), 0)
    logprob = (chosen - best).to(tl.float64) - tl.log(mass)
    put(drawn_ptr + row * 2, logits_ptr + row * stride, token, logprob, tl.load(warped_ptr + slot))
