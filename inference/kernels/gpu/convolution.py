"""Short causal convolutions over packed sequences.

A program computes a tile of one sequence's tokens, of some channels: what came before its first token is
the row before, or, of a sequence's first ones in a step, what was kept of it.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.gpu.recurrent import LOST, Runs, ShortKernel
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier

_CHANNELS, _TOKENS = 128, 8  # of a program, at once


def convolve(
    x: Tensor,  # (T, channels), rows may lie apart
    kernel: ShortKernel,
    recent: Tensor,  # (places, taps - 1, channels) float32, written; places may lie apart
    runs: Runs,
) -> Tensor:
    """Return (T, channels) in the dtype of `x`; of a sequence whose state is lost no numbers."""
    weight, bias = kernel.weight, kernel.bias
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    channels = x.shape[1]
    launch(
        _convolve,
        (len(runs.reads) if runs.longest == 1 else runs.blocks.shape[1], triton.cdiv(channels, _CHANNELS)),
        x,
        weight,
        weight if bias is None else bias,
        recent,
        runs.starts,
        runs.reads,
        runs.writes,
        runs.blocks,
        out,
        x.stride(0),
        recent.stride(0),
        channels,
        runs.blocks.stride(0),
        runs.tile,
        TAPS=len(weight),
        ROWS=triton.next_power_of_2(len(weight)),
        BIASED=bias is not None,
        SILU=kernel.silu,
        SINGLE=runs.longest == 1,
        LOST=LOST,
        TOKENS=1 if runs.longest == 1 else _TOKENS,
        BLOCK=_CHANNELS,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out


@triton.jit
def from_zero(number, like):
    """Return in the shape of `like` whether a number isn't negative: no scalar, which isn't a mask to all."""
    return tl.zeros_like(like) + number >= 0


@triton.jit(do_not_specialize=["blocks_stride", "tile"])
def _convolve(
    x_ptr, weight_ptr, bias_ptr, recent_ptr, starts_ptr, reads_ptr, writes_ptr, blocks_ptr, out_ptr,
    x_stride, place_stride, channels, blocks_stride, tile,
    TAPS: tl.constexpr, ROWS: tl.constexpr, BIASED: tl.constexpr, SILU: tl.constexpr, SINGLE: tl.constexpr,
    LOST: tl.constexpr, TOKENS: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    channel = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = channel < channels
    await_earlier(OVERLAPS)
    bias = tl.zeros([BLOCK], tl.float32)
    if BIASED:
        bias += tl.load(bias_ptr + channel, mask=inside, other=0.0)
    if SINGLE:  # tokens of one sequence each
        run, first = tl.program_id(0), 0
        begin = run
        tokens = 1
    else:
        block = tl.load(blocks_ptr + tl.program_id(0))
        first = tl.load(blocks_ptr + blocks_stride + tl.program_id(0))
        run = tl.maximum(block, 0)
        begin = tl.load(starts_ptr + run)
        tokens = tl.where(block < 0, 0, tl.load(starts_ptr + run + 1) - begin)
    read, write = tl.load(reads_ptr + run).to(tl.int64), tl.load(writes_ptr + run).to(tl.int64)
    bias += tl.where(read == LOST, float("nan"), 0.0)
    rows = x_ptr + begin.to(tl.int64) * x_stride + channel[None, :]
    kept = recent_ptr + read * place_stride + channel[None, :]
    known, i = from_zero(read, channel), tl.arange(0, TOKENS)
    for t in range(first, tl.minimum(first + tile, tokens), TOKENS):
        there = (t + i < tokens)[:, None] & inside[None, :]
        found = tl.zeros([TOKENS, BLOCK], tl.float32) + bias[None, :]
        for j in tl.static_range(TAPS):
            at = (t + i + (j - (TAPS - 1)))[:, None]
            new = tl.load(rows + at.to(tl.int64) * x_stride, mask=there & (at >= 0), other=0.0)
            old = tl.load(
                kept + (at + (TAPS - 1)) * channels, mask=there & (at < 0) & known[None, :], other=0.0
            )
            weight = tl.load(weight_ptr + j * channels + channel, mask=inside, other=0.0)
            found += weight[None, :] * (new.to(tl.float32) + old)
        if SILU:
            found = found / (1.0 + tl.exp(-found))
        place = (begin + t + i).to(tl.int64)[:, None] * channels + channel[None, :]
        tl.store(out_ptr + place, found.to(out_ptr.dtype.element_ty), mask=there)
    if (first < tokens) & (first + tile >= tokens) & (write >= 0):  # the last inputs are kept
        tap = tl.arange(0, ROWS)
        at = (tokens + tap - (TAPS - 1))[:, None]
        those = (tap < TAPS - 1)[:, None] & inside[None, :]
        new = tl.load(rows + at.to(tl.int64) * x_stride, mask=those & (at >= 0), other=0.0).to(tl.float32)
        old = tl.load(kept + (at + (TAPS - 1)) * channels, mask=those & (at < 0) & known[None, :], other=0.0)
        goes = recent_ptr + write * place_stride + tap[:, None] * channels + channel[None, :]
        tl.store(goes, new + old, mask=those)
