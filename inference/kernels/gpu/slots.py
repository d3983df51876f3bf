"""Around the forward pass of a graph: from slots to a step of decodes, and from tokens to slots.

Each is one small kernel in place of a dozen of torch's, each of which would take its 2 microseconds
of every step.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.gpu.wishes import Wish
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier
from inference.sampling.recipe import MOST_COUNTED

_BLOCK = 128


class Gathered(NamedTuple):
    """What a step of n decodes begins with."""

    ids: Tensor  # (n,) int64
    positions: Tensor  # (n,) int64
    places: Tensor  # (n,) int64; -1 for padding
    lengths: Tensor  # (n,) int32; 0 for padding
    counts: Tensor  # (n,) int64: the same, which is the position of the token to be chosen
    seeds: Tensor  # (n,) int64
    temperatures: Tensor  # (n,) float32
    warped: Tensor  # (n,) bool


def gather(
    slots: Tensor,  # (n,) int32
    tokens: Tensor,  # (slots,) int64: the newest
    lengths: Tensor,  # (slots,) int32
    tables: Tensor,  # (slots, pages) int32
    seeds: Tensor,  # (slots,) int64
    temperatures: Tensor,  # (slots,) float32
    warped: Tensor,  # (slots,) bool
    *,
    page: int,
) -> Gathered:
    """Return what the slots' rows say of a step in which each goes on by a token; `page`: its tokens."""
    count = len(slots)

    def empty(dtype: torch.dtype) -> Tensor:
        return torch.empty(count, dtype=dtype, device=slots.device)

    found = Gathered(
        ids=empty(torch.int64),
        positions=empty(torch.int64),
        places=empty(torch.int64),
        lengths=empty(torch.int32),
        counts=empty(torch.int64),
        seeds=empty(torch.int64),
        temperatures=empty(torch.float32),
        warped=empty(torch.bool),
    )
    launch(
        _gather,
        (triton.cdiv(count, _BLOCK),),
        slots,
        tokens,
        lengths,
        tables,
        seeds,
        temperatures,
        warped.view(torch.uint8),
        *found[:-1],
        found.warped.view(torch.uint8),
        count,
        tables.stride(0),
        PAGE=page,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return found


def scatter(
    slots: Tensor,  # (n,) int32
    before: Tensor,  # (n,) int32: their lengths before
    sampled: Tensor,  # (n,) int64
    logprobs: Tensor,  # (n,) float32
    tokens: Tensor,  # (slots,) int64, written
    previous: Tensor,  # (slots,) int64, written: those that were the newest
    lengths: Tensor,  # (slots,) int32, written
    drawn: Tensor,  # (n, 2) float64, written: tokens, and log-probabilities
) -> None:
    """Make the sampled tokens the newest of their slots, but of padding, and put down what was sampled."""
    count = len(slots)
    launch(
        _scatter,
        (triton.cdiv(count, _BLOCK),),
        slots,
        before,
        sampled,
        logprobs,
        tokens,
        previous,
        lengths,
        drawn,
        count,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=True,
    )


def settle(
    slots: Tensor,  # (n,) int32
    drawn: Tensor,  # (n, 2) float64: tokens, and log-probabilities
    lengths: Tensor,  # (slots,) int32
    tokens: Tensor,  # (slots,) int64, written
    wishes: Tensor,  # (slots, wishes) float64
    marks: Tensor,  # (slots, vocabulary) int16, written
) -> None:
    """Make the drawn tokens the newest of their slots, and count them for those with penalties."""
    count = len(slots)
    launch(
        _settle,
        (triton.cdiv(count, _BLOCK),),
        slots,
        drawn,
        lengths,
        tokens,
        wishes,
        marks,
        count,
        wishes.stride(0),
        marks.stride(0),
        PENALISED=int(Wish.PENALISED),
        MOST=MOST_COUNTED,
        BLOCK=_BLOCK,
        num_warps=4,
        enable_fp_fusion=True,
    )


@triton.jit(do_not_specialize=["count"])
def _gather(
    slots,
    tokens,
    lengths,
    tables,
    seeds,
    temperatures,
    warped,
    ids_out,
    positions_out,
    places_out,
    lengths_out,
    counts_out,
    seeds_out,
    temperatures_out,
    warped_out,
    count,
    stride,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    await_earlier(OVERLAPS)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < count
    slot = tl.load(slots + row, mask=inside, other=0).to(tl.int64)
    length = tl.load(lengths + slot, mask=inside, other=0)
    position = tl.maximum(length - 1, 0)
    page = tl.load(tables + slot * stride + position // PAGE, mask=inside, other=0).to(tl.int64)
    place = tl.where(length > 0, page * PAGE + position % PAGE, -1)
    tl.store(ids_out + row, tl.load(tokens + slot, mask=inside, other=0), mask=inside)
    tl.store(positions_out + row, position.to(tl.int64), mask=inside)
    tl.store(places_out + row, place, mask=inside)
    tl.store(lengths_out + row, length, mask=inside)
    tl.store(counts_out + row, length.to(tl.int64), mask=inside)
    tl.store(seeds_out + row, tl.load(seeds + slot, mask=inside, other=0), mask=inside)
    tl.store(temperatures_out + row, tl.load(temperatures + slot, mask=inside, other=0.0), mask=inside)
    tl.store(warped_out + row, tl.load(warped + slot, mask=inside, other=0), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _scatter(
    slots, before, sampled, logprobs, tokens, previous, lengths, drawn, count,
    BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    await_earlier(OVERLAPS)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < count
    slot = tl.load(slots + row, mask=inside, other=0).to(tl.int64)
    length = tl.load(before + row, mask=inside, other=0)
    token = tl.load(sampled + row, mask=inside, other=0)
    live = inside & (length > 0)
    tl.store(previous + slot, tl.load(tokens + slot, mask=live, other=0), mask=live)
    tl.store(tokens + slot, token, mask=live)
    tl.store(lengths + slot, length + 1, mask=live)
    tl.store(drawn + row * 2, token.to(tl.float64), mask=inside)
    tl.store(drawn + row * 2 + 1, tl.load(logprobs + row, mask=inside, other=0.0).to(tl.float64), mask=inside)


@triton.jit(do_not_specialize=["count"])
def _settle(
    slots,
    drawn,
    lengths,
    tokens,
    wishes,
    marks,
    count,
    wishes_stride,
    marks_stride,
    PENALISED: tl.constexpr,
    MOST: tl.constexpr,
    BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
):
    await_earlier(OVERLAPS)
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < count
    slot = tl.load(slots + row, mask=inside, other=0).to(tl.int64)
    live = inside & (tl.load(lengths + slot, mask=inside, other=0) > 0)
    token = tl.load(drawn + row * 2, mask=live, other=0.0).to(tl.int64)
    tl.store(tokens + slot, token, mask=live)
    penalised = live & (tl.load(wishes + slot * wishes_stride + PENALISED, mask=live, other=0.0) != 0.0)
    mark = tl.load(marks + slot * marks_stride + token, mask=penalised, other=0).to(tl.int32)
    counted = mark + ((mark & MOST) < MOST).to(tl.int32)
    tl.store(marks + slot * marks_stride + token, counted.to(tl.int16), mask=penalised)
