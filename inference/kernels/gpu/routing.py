"""Tokens sorted by the experts that compute them, and what these make of a token added up again.

Nothing waits for the device or depends in shape on what was chosen, and nothing is atomic: an expert's
pairs are in the order of their tokens. A token's experts are added in their own order, so its sum
depends on nothing but what they gave.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.gpu.mixtures import Routing
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier

_PAIRS = 1024  # that a program looks at in one turn
_BLOCK = 512  # numbers of a token that a program adds up


def route(index: Tensor, experts: int) -> Routing:
    """Return which experts compute which tokens, of what each token (tokens, chosen) has chosen.

    Chosen experts beyond those that there are, or below 0, stand for none.
    """
    index = index.contiguous()
    pairs = index.numel()
    order, places = (torch.empty(pairs, dtype=torch.int32, device=index.device) for _ in range(2))
    begins = torch.empty(experts + 1, dtype=torch.int32, device=index.device)
    launch(
        _route, (experts + 1,),
        index, order, places, begins, experts, pairs,
        BLOCK=_PAIRS, num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return Routing(index, experts, order, places, begins)


def combine(found: Tensor, routing: Routing, scores: Tensor) -> Tensor:
    """Return (tokens, n): each token's experts' results (pairs, n), in the routing's order, by their scores.

    `scores` (tokens, chosen), how much each of them counts. Sums are float32, and rounded once.
    """
    tokens, chosen = routing.index.shape
    scores, width = scores.contiguous(), found.shape[1]
    if found.stride(1) != 1 or scores.shape != routing.index.shape:
        raise ValueError("each expert of a token has one score, and its numbers lie side by side")
    result = found.new_empty(tokens, width)
    if tokens:
        launch(
            _combine_experts, (tokens, triton.cdiv(width, _BLOCK)),
            found, routing.index, routing.index if routing.places is None else routing.places, scores, result,
            found.stride(0), width, routing.experts,
            CHOSEN=chosen, WIDTH=int(triton.next_power_of_2(chosen)), SORTED=routing.places is not None,
            BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return result


@triton.jit(do_not_specialize=["pairs"])
def _route(
    index_ptr, order_ptr, places_ptr, begins_ptr, experts, pairs,
    BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    """Find the places of one expert's pairs; of those of none, which have no place, by the last program."""
    await_earlier(OVERLAPS)
    own = tl.program_id(0)
    at = tl.arange(0, BLOCK)
    before = tl.zeros([BLOCK], dtype=tl.int32)
    for start in range(0, pairs, BLOCK):
        expert = tl.load(index_ptr + start + at, mask=start + at < pairs, other=-1)
        before += ((expert >= 0) & (expert < own)).to(tl.int32)
    begin = tl.sum(before, 0)
    tl.store(begins_ptr + own, begin)
    for start in range(0, pairs, BLOCK):
        inside = start + at < pairs
        expert = tl.load(index_ptr + start + at, mask=inside, other=-1)
        if own < experts:
            mine = inside & (expert == own)
            counted = mine.to(tl.int32)
            place = begin + tl.cumsum(counted, 0) - 1
            tl.store(order_ptr + place, start + at, mask=mine)
            tl.store(places_ptr + start + at, place, mask=mine)
            begin += tl.sum(counted, 0)
        else:
            nobodys = inside & ((expert < 0) | (expert >= experts))
            tl.store(places_ptr + start + at, tl.zeros([BLOCK], dtype=tl.int32) - 1, mask=nobodys)


@triton.jit
def _combine_experts(
    found_ptr, index_ptr, places_ptr, scores_ptr, out_ptr, stride, width, experts,
    CHOSEN: tl.constexpr, WIDTH: tl.constexpr, SORTED: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    token = tl.program_id(0).to(tl.int64)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    choice = tl.arange(0, WIDTH)
    there = choice < CHOSEN
    expert = tl.load(index_ptr + token * CHOSEN + choice, mask=there, other=0)
    there = there & (expert >= 0) & (expert < experts)
    key = tl.where(there, expert.to(tl.int64), 1 << 40) * WIDTH + choice  # all different
    rank = tl.sum((key[None, :] < key[:, None]).to(tl.int32), 1)
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for turn in range(CHOSEN):
        now = there & (rank == turn)
        pair = token * CHOSEN + tl.sum(tl.where(now, choice, 0), 0)
        some = tl.sum(now.to(tl.int32), 0)  # 0: the others are of none
        place = pair
        if SORTED:
            place = tl.load(places_ptr + pair).to(tl.int64)
        score = tl.load(scores_ptr + pair).to(tl.float32)
        part = tl.load(found_ptr + place * stride + n, mask=n < some * width, other=0.0).to(tl.float32)
        total += tl.where(some > 0, score, 0.0) * part
    tl.store(out_ptr + token * width + n, total.to(out_ptr.dtype.element_ty), mask=n < width)
