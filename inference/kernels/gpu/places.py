"""Where the states of sequences are: two places each, read and written in turn, and moves between places."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.gpu.recurrent import LOST
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier

_SEQUENCES = 128
_NUMBERS = 4096  # of a state, that a program moves


def find_places(
    slots: Tensor,  # (n,) int32
    starts: Tensor,  # (n + 1,) int32
    lengths: Tensor,  # (n,) int32; 0: padding
    held: Tensor,  # (slots, 2) int32, written: how many tokens the state in each place has read
) -> tuple[Tensor, Tensor]:
    """Return the places (n,) int32 of a step's sequences: of their states, and of those that come of it.

    -1: a sequence that nothing was read of, and padding. LOST: one that goes on from where there is no state.
    """
    reads, writes = torch.empty_like(slots), torch.empty_like(slots)
    launch(
        _find_places,
        (triton.cdiv(len(slots), _SEQUENCES),),
        slots,
        starts,
        lengths,
        held,
        reads,
        writes,
        len(slots),
        LOST=LOST,
        BLOCK=_SEQUENCES,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return reads, writes


def move(
    states: Tensor,  # (places, numbers) float32, written
    held: Tensor,  # (slots, 2) int32, written: how many tokens the state in each place has read
    slots: Tensor,  # (n,) int32, all different
    others: Tensor,  # (n,) int32: places, all different
    tokens: Tensor,  # (n,) int32: that the states have read
    *,
    keeps: bool,
) -> None:
    """Copy states of slots to places, or with `keeps` false from there to slots that have none.

    Of a slot that doesn't have the state no number is kept.
    """
    numbers = states.shape[1]
    launch(
        _move,
        (len(slots), triton.cdiv(numbers, _NUMBERS)),
        states,
        held,
        slots,
        others,
        tokens,
        states.stride(0),
        numbers,
        KEEPS=keeps,
        BLOCK=_NUMBERS,
        num_warps=8,
        enable_fp_fusion=True,
    )
    if not keeps:
        held[slots.long()] = torch.stack([tokens, torch.full_like(tokens, -1)], 1)


@triton.jit(do_not_specialize=["count"])
def _find_places(
    slots_ptr, starts_ptr, lengths_ptr, held_ptr, reads_ptr, writes_ptr, count,
    LOST: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = row < count
    await_earlier(OVERLAPS)
    slot = tl.load(slots_ptr + row, mask=inside, other=0)
    stop = tl.load(starts_ptr + row + 1, mask=inside, other=0)
    size = stop - tl.load(starts_ptr + row, mask=inside, other=0)
    length = tl.load(lengths_ptr + row, mask=inside, other=0)
    real = inside & (length > 0)
    before = length - size
    begins = before == 0
    first = tl.load(held_ptr + 2 * slot, mask=real, other=0)
    second = tl.load(held_ptr + 2 * slot + 1, mask=real, other=0)
    read = tl.where((first == before) | (second == before), 2 * slot + tl.where(first != before, 1, 0), LOST)
    at = tl.where(begins | (first != before), 1, 0)
    tl.store(held_ptr + 2 * slot + 1 - at, length, mask=real)
    tl.store(held_ptr + 2 * slot + 1, -1, mask=real & begins)
    tl.store(reads_ptr + row, tl.where(real & (before != 0), read, -1), mask=inside)
    tl.store(writes_ptr + row, tl.where(real, 2 * slot + 1 - at, -1), mask=inside)


@triton.jit
def _move(
    states_ptr, held_ptr, slots_ptr, others_ptr, tokens_ptr, stride, numbers,
    KEEPS: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    row, at = tl.program_id(0), tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    await_earlier(OVERLAPS)
    slot, other = tl.load(slots_ptr + row).to(tl.int64), tl.load(others_ptr + row).to(tl.int64)
    if KEEPS:
        tokens = tl.load(tokens_ptr + row)
        first, second = tl.load(held_ptr + 2 * slot) == tokens, tl.load(held_ptr + 2 * slot + 1) == tokens
        source, target = 2 * slot + tl.where(first, 0, 1), other
    else:
        source, target = other, 2 * slot
    inside = at < numbers
    moved = tl.load(states_ptr + source * stride + at, mask=inside)
    if KEEPS:
        moved += tl.where(first | second, 0.0, float("nan"))
    tl.store(states_ptr + target * stride + at, moved, mask=inside)
