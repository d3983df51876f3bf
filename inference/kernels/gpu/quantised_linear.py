"""y = x @ weight.T + bias with weights in 4 or 8 bits, which are read so once, and widened in registers.

One row is multiplied by plain arithmetic; more by the matrix units, the weights being the operand with
many rows, rounded to the dtype of x as if they had been expanded. Above some number of rows it is faster
to expand a weight as a whole (`expand_blocks`) and to multiply that: `quantised_tiles` offers what is
worth to be measured at warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.kernels.gpu.interpreter import interpreted
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.linear import add_parts
from inference.kernels.gpu.overlap import await_earlier
from inference.quantised.blocks import BLOCK, Blocks, Numbers

MOST_ROWS = 256
_LEAST_ROWS, _MOST_TOGETHER = 16, 64  # that the matrix units multiply at once
_LEAST_BLOCKS = 4  # that a part of the inner dimension has at least
_BYTES = 2048  # that a turn of four warps loads: 16 by each thread
_EXPANDED = 16  # outputs that a program expands
_BASE = 2.0**23  # whose last bits are 0, and from which on floats are whole numbers


@dataclass(frozen=True, slots=True)
class QuantisedTile:
    """How a program goes through the weights."""

    outputs: int  # rows of the weights
    blocks: int  # of inputs, of one turn
    parts: int  # of the inner dimension, each a program's
    rows: int  # of x; 1: without the matrix units
    warps: int = 4
    stages: int = 3  # turns whose loads are in flight


def quantised_linear(x: Tensor, weight: Blocks, bias: Tensor | None, *, tile: QuantisedTile) -> Tensor:
    """Return (M, N) of inputs (M, K), a weight (N, K) and a bias (N,).

    Raises ValueError if the numbers of a row don't lie side by side, or for several rows without the matrix
    units.
    """
    rows, inner = x.shape
    if x.stride(1) != 1:
        raise ValueError("the numbers of a row must lie side by side; call contiguous() first")
    if rows > 1 and tile.rows == 1:
        raise ValueError(f"a tile without the matrix units takes 1 row, got {rows}")
    outputs = len(weight.codes)
    result = x.new_empty(rows, outputs)
    if not rows:
        return result
    target = result
    if tile.parts > 1:
        target = torch.empty(tile.parts, rows, outputs, dtype=torch.float32, device=x.device)
    programs = triton.cdiv(outputs, tile.outputs), tile.parts, triton.cdiv(rows, tile.rows)
    launch(
        _row if tile.rows == 1 else _rows, programs,
        x, *weight_tensors(weight), x if bias is None else bias, target,
        x.stride(0), *weight_sizes(weight), rows * outputs if tile.parts > 1 else 0, target.stride(-2), rows,
        ROWS=tile.rows, OUTPUTS=tile.outputs, BLOCKS=tile.blocks, PARTS=tile.parts, STAGES=tile.stages,
        BIAS=bias is not None and tile.parts == 1, WHOLE=inner % (BLOCK * tile.blocks * tile.parts) == 0,
        **weight_form(weight), WIDEN=interpreted(), num_warps=tile.warps, enable_fp_fusion=True,
    )  # fmt: skip
    if tile.parts > 1:
        add_parts(target, bias, result)
    return result


def expand_blocks(weight: Blocks, dtype: torch.dtype) -> Tensor:
    """Return a weight (N, K) in `dtype`."""
    outputs, inner = weight.shape
    result = torch.empty(outputs, inner, dtype=dtype, device=weight.device)
    at_once = 4 if weight.blocks >= 4 else 1
    launch(
        _expand, (triton.cdiv(outputs, _EXPANDED), triton.cdiv(weight.blocks, at_once)),
        *weight_tensors(weight), result, *weight_sizes(weight), inner,
        OUTPUTS=_EXPANDED, BLOCKS=at_once, **weight_form(weight), num_warps=4, enable_fp_fusion=True,
    )  # fmt: skip
    return result


def quantised_tiles(rows: int, weight: Blocks, processors: int) -> Iterator[QuantisedTile]:
    """Yield tiles worth measuring for so many rows: one by arithmetic first, and others around it."""
    outputs, blocks, row = len(weight.codes), weight.blocks, BLOCK * weight.bits // 8
    most = _MOST_TOGETHER // 2 if weight.dtype == torch.float32 else _MOST_TOGETHER  # or registers spill
    together = 1 if rows == 1 else min(max(_power(rows), _LEAST_ROWS), most)
    sizes = (32, 16, 8, 4) if rows == 1 else (128, 64, 32)
    known = set()
    for least in (3, 2, 6):  # programs for each processor
        across = triton.cdiv(rows, together)
        size = next((n for n in sizes if triton.cdiv(outputs, n) * across >= least * processors), sizes[-1])
        missing = _power(max(1, processors // (triton.cdiv(outputs, size) * across)))
        parts = min(missing, _power(max(1, blocks // _LEAST_BLOCKS)))
        turn = min(max(1, _BYTES // row // size), _power(blocks)) if rows == 1 else 1
        for stages in _stages(rows, weight):
            tile = QuantisedTile(size, turn, parts, together, 8 if size * together > 4096 else 4, stages)
            if tile not in known:
                known.add(tile)
                yield tile


def _stages(rows: int, weight: Blocks) -> tuple[int, ...]:
    """Return how many turns' loads may be in flight; what is looked up in a table would be loaded so, too."""
    if weight.numbers is Numbers.LEVELS:
        return (1,) if rows == 1 else (2, 1)
    return (3, 1) if rows == 1 else (4, 2)


def _power(number: int) -> int:
    return int(triton.next_power_of_2(number))


def weight_tensors(weight: Blocks) -> tuple[Tensor, ...]:
    """Return what kernels read of a weight."""
    zeros, levels = weight.zeros, weight.levels
    return (
        weight.codes,
        weight.scales,
        weight.scales if zeros is None else zeros,
        weight.scales if levels is None else levels,
    )


def weight_sizes(weight: Blocks) -> tuple[int | float, ...]:
    """Return what kernels are told of its sizes, and of its numbers."""
    return *weight.shape, weight.blocks, weight.scales.shape[1], _BASE - weight.offset


def weight_form(weight: Blocks) -> dict[str, int | bool]:
    """Return what kernels are compiled for."""
    return {
        "BITS": weight.bits,
        "NUMBERS": int(weight.numbers),
        "GROUP": weight.group,
        "RUN": weight.run,
        "ZEROS": weight.zeros is not None,
    }


@triton.jit
def block_numbers(
    codes_ptr, scales_ptr, zeros_ptr, levels_ptr, n, block, outputs, blocks, groups, base,
    BLOCKS: tl.constexpr, BITS: tl.constexpr, NUMBERS: tl.constexpr, GROUP: tl.constexpr, RUN: tl.constexpr,
    ZEROS: tl.constexpr,
) -> tl.tensor:  # fmt: skip
    """Return the numbers of both halves of blocks, (OUTPUTS, runs, RUN) each, in float32.

    `base`: what is taken from the float whose last bits are a code, to be its level.
    """
    PER: tl.constexpr = 64 // RUN  # runs of half a block
    run = tl.arange(0, BLOCKS * PER)
    at = block + run // PER
    inside = ((n[:, None] < outputs) & (at[None, :] < blocks))[:, :, None]
    row = n.to(tl.int64)[:, None, None]
    byte = row * (blocks * (16 * BITS)) + (block * (16 * BITS) + run // PER * (16 * BITS))[None, :, None]
    byte += (run % PER * RUN)[None, :, None] + tl.arange(0, RUN)[None, None, :]
    codes = tl.load(codes_ptr + byte, mask=inside, other=0).to(tl.int32)
    if BITS == 4:
        low, high = codes & 15, codes >> 4
    else:
        low, high = codes, tl.load(codes_ptr + byte + 64, mask=inside, other=0).to(tl.int32)
    low, high = _levels(low, levels_ptr, base, NUMBERS), _levels(high, levels_ptr, base, NUMBERS)
    k = at * 128 + run % PER * RUN
    group = row * groups + (k // GROUP)[None, :, None]
    scale = tl.load(scales_ptr + group, mask=inside, other=0.0)
    if GROUP % 128 == 0:  # a block's halves have the same
        if ZEROS:
            zero = tl.load(zeros_ptr + group, mask=inside, other=0.0)
            low, high = low + zero, high + zero
        return low * scale, high * scale
    other = row * groups + ((k + 64) // GROUP)[None, :, None]
    if ZEROS:
        low += tl.load(zeros_ptr + group, mask=inside, other=0.0)
        high += tl.load(zeros_ptr + other, mask=inside, other=0.0)
    return low * scale, high * tl.load(scales_ptr + other, mask=inside, other=0.0)


@triton.jit
def _levels(codes: tl.tensor, levels_ptr: tl.tensor, base: tl.tensor, NUMBERS: tl.constexpr) -> tl.tensor:
    """Return the numbers of codes, as `Numbers` says: E4M3's without what scales are multiplied with."""
    if NUMBERS == 1:
        return tl.load(levels_ptr + codes)
    if NUMBERS == 0:  # half the work of a conversion
        return (codes | 0x4B000000).to(tl.float32, bitcast=True) - base
    half = codes << 8
    if NUMBERS == 2:  # which has a bit of exponent less
        half = (codes & 0x80) << 8 | (codes & 0x7F) << 7
    return half.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)


@triton.jit(do_not_specialize=["base"])
def _row(
    x_ptr, codes_ptr, scales_ptr, zeros_ptr, levels_ptr, bias_ptr, out_ptr,
    x_stride, outputs, inner, blocks, groups, base, plane, out_stride, rows,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCKS: tl.constexpr, PARTS: tl.constexpr,
    STAGES: tl.constexpr, BIAS: tl.constexpr, WHOLE: tl.constexpr, BITS: tl.constexpr,
    NUMBERS: tl.constexpr, GROUP: tl.constexpr, RUN: tl.constexpr, ZEROS: tl.constexpr,
    WIDEN: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    PER: tl.constexpr = 64 // RUN
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    run = tl.arange(0, BLOCKS * PER)
    k = (run // PER * 128 + run % PER * RUN)[:, None] + tl.arange(0, RUN)[None, :]
    size = tl.cdiv(tl.cdiv(blocks, PARTS), BLOCKS) * BLOCKS
    start = tl.program_id(1) * size
    total = tl.zeros([OUTPUTS, BLOCKS * PER, RUN], dtype=tl.float32)
    for block in tl.range(start, tl.minimum(start + size, blocks), BLOCKS, num_stages=STAGES):
        at = block * 128 + k
        if WHOLE:
            first, second = tl.load(x_ptr + at), tl.load(x_ptr + at + 64)
        else:
            first = tl.load(x_ptr + at, mask=at < inner, other=0.0)
            second = tl.load(x_ptr + at + 64, mask=at + 64 < inner, other=0.0)
        low, high = block_numbers(
            codes_ptr, scales_ptr, zeros_ptr, levels_ptr, n, block, outputs, blocks, groups, base,
            BLOCKS, BITS, NUMBERS, GROUP, RUN, ZEROS,
        )  # fmt: skip
        total += low * first.to(tl.float32)[None, :, :]
        total += high * second.to(tl.float32)[None, :, :]
    y = tl.sum(tl.sum(total, 2), 1)
    if BIAS:
        y += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)
    at = out_ptr + tl.program_id(1) * plane + n
    tl.store(at, y.to(out_ptr.dtype.element_ty), mask=n < outputs)


@triton.jit(do_not_specialize=["base", "rows"])
def _rows(
    x_ptr, codes_ptr, scales_ptr, zeros_ptr, levels_ptr, bias_ptr, out_ptr,
    x_stride, outputs, inner, blocks, groups, base, plane, out_stride, rows,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, BLOCKS: tl.constexpr, PARTS: tl.constexpr,
    STAGES: tl.constexpr, BIAS: tl.constexpr, WHOLE: tl.constexpr, BITS: tl.constexpr,
    NUMBERS: tl.constexpr, GROUP: tl.constexpr, RUN: tl.constexpr, ZEROS: tl.constexpr,
    WIDEN: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    m = tl.program_id(2) * ROWS + tl.arange(0, ROWS)
    byte = tl.arange(0, BLOCKS * 64)
    k = byte // 64 * 128 + byte % 64
    size = tl.cdiv(tl.cdiv(blocks, PARTS), BLOCKS) * BLOCKS
    start = tl.program_id(1) * size
    inputs = x_ptr + m.to(tl.int64)[None, :] * x_stride + k[:, None]
    total = tl.zeros([OUTPUTS, ROWS], dtype=tl.float32)
    for block in tl.range(start, tl.minimum(start + size, blocks), BLOCKS, num_stages=STAGES):
        at, some = block * 128, m[None, :] < rows
        if WHOLE:
            first = tl.load(inputs + at, mask=some, other=0.0)
            second = tl.load(inputs + at + 64, mask=some, other=0.0)
        else:
            left = inner - at - k[:, None]
            first = tl.load(inputs + at, mask=some & (left > 0), other=0.0)
            second = tl.load(inputs + at + 64, mask=some & (left > 64), other=0.0)
        low, high = block_numbers(
            codes_ptr, scales_ptr, zeros_ptr, levels_ptr, n, block, outputs, blocks, groups, base,
            BLOCKS, BITS, NUMBERS, GROUP, RUN, ZEROS,
        )  # fmt: skip
        low = tl.reshape(low.to(x_ptr.dtype.element_ty), [OUTPUTS, BLOCKS * 64])
        high = tl.reshape(high.to(x_ptr.dtype.element_ty), [OUTPUTS, BLOCKS * 64])
        if WIDEN:
            low, high = low.to(tl.float32), high.to(tl.float32)
            first, second = first.to(tl.float32), second.to(tl.float32)
        total = tl.dot(low, first, total, input_precision="ieee")
        total = tl.dot(high, second, total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    at = out_ptr + tl.program_id(1) * plane + m.to(tl.int64)[None, :] * out_stride + n[:, None]
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=(n[:, None] < outputs) & (m[None, :] < rows))


@triton.jit(do_not_specialize=["base"])
def _expand(
    codes_ptr, scales_ptr, zeros_ptr, levels_ptr, out_ptr, outputs, inner, blocks, groups, base, out_stride,
    OUTPUTS: tl.constexpr, BLOCKS: tl.constexpr, BITS: tl.constexpr, NUMBERS: tl.constexpr,
    GROUP: tl.constexpr, RUN: tl.constexpr, ZEROS: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    PER: tl.constexpr = 64 // RUN
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    block = tl.program_id(1) * BLOCKS
    low, high = block_numbers(
        codes_ptr, scales_ptr, zeros_ptr, levels_ptr, n, block, outputs, blocks, groups, base,
        BLOCKS, BITS, NUMBERS, GROUP, RUN, ZEROS,
    )  # fmt: skip
    run = tl.arange(0, BLOCKS * PER)
    k = ((block + run // PER) * 128 + run % PER * RUN)[:, None] + tl.arange(0, RUN)[None, :]
    at = out_ptr + n.to(tl.int64)[:, None, None] * out_stride + k[None, :, :]
    inside = n[:, None, None] < outputs
    tl.store(at, low.to(out_ptr.dtype.element_ty), mask=inside & (k[None, :, :] < inner))
    tl.store(at + 64, high.to(out_ptr.dtype.element_ty), mask=inside & (k[None, :, :] + 64 < inner))
