"""A linear of a mixture's experts with weights in 4 or 8 bits, which are read so, and widened in registers.

As `expert_linear.py`, with the numbers of `quantised_linear.py`: the experts' outputs lie one expert's behind
the other's, as one weight.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from inference.gpu.mixtures import ExpertWeight, Routing
from inference.kernels.gpu.expert_tiles import ExpertTile, find_pair, find_tile, tiles_at_most
from inference.kernels.gpu.interpreter import interpreted
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier
from inference.kernels.gpu.quantised_linear import (
    block_numbers,
    weight_form,
    weight_sizes,
    weight_tensors,
)
from inference.quantised.blocks import BLOCK, Blocks


def multiply_blocks(
    x: Tensor, weight: ExpertWeight, routing: Routing, out: Tensor, tile: ExpertTile, *, divides: int
) -> None:
    """Write to `out` (pairs, n) each pair's row of x times its expert's weight.

    `divides`: by how much a pair is divided for its row, 0 if rows lie in the routing's order.
    """
    numbers, bias = weight.numbers, weight.bias
    assert isinstance(numbers, Blocks), "others are multiplied as they are"
    across = triton.cdiv(weight.outputs, tile.outputs)
    order, begins = routing.order, routing.begins
    _, *sizes = weight_sizes(numbers)
    single = tile.rows == 1
    launch(
        _pair_of_blocks if single else _tile_of_blocks,
        (across, routing.pairs) if single else (across * tiles_at_most(routing, tile.rows),),
        x, *weight_tensors(numbers), out if bias is None else bias, out, routing.index,
        routing.index if order is None else order, routing.index if begins is None else begins,
        x.stride(0), weight.outputs, *sizes, weight.experts,
        DIVIDES=divides, SORTED=order is not None, EXPERTS=int(triton.next_power_of_2(weight.experts)),
        ROWS=tile.rows, OUTPUTS=tile.outputs, BLOCKS=tile.inner // BLOCK, STAGES=tile.stages,
        BIAS=bias is not None, WHOLE=weight.inputs % tile.inner == 0, **weight_form(numbers),
        WIDEN=interpreted(), num_warps=tile.warps, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit(do_not_specialize=["base"])
def _pair_of_blocks(
    x_ptr, codes_ptr, scales_ptr, zeros_ptr, levels_ptr, bias_ptr, out_ptr, index_ptr, order_ptr, begins_ptr,
    x_stride, outputs, inner, blocks, groups, base, experts,
    DIVIDES: tl.constexpr, SORTED: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr, BIAS: tl.constexpr,
    WHOLE: tl.constexpr, BITS: tl.constexpr, NUMBERS: tl.constexpr, GROUP: tl.constexpr, RUN: tl.constexpr,
    ZEROS: tl.constexpr, WIDEN: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    PER: tl.constexpr = 64 // RUN
    place = tl.program_id(1)
    pair, expert = find_pair(index_ptr, order_ptr, begins_ptr, place, experts, SORTED)
    if (expert < 0) | (expert >= experts):
        return
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    row = place
    if DIVIDES > 0:
        row = pair // DIVIDES
    skipped = (expert * outputs).to(tl.int32)
    run = tl.arange(0, BLOCKS * PER)
    k = (run // PER * 128 + run % PER * RUN)[:, None] + tl.arange(0, RUN)[None, :]
    inputs = x_ptr + row.to(tl.int64) * x_stride
    total = tl.zeros([OUTPUTS, BLOCKS * PER, RUN], dtype=tl.float32)
    for block in tl.range(0, blocks, BLOCKS, num_stages=STAGES):
        at = block * 128 + k
        if WHOLE:
            first, second = tl.load(inputs + at), tl.load(inputs + at + 64)
        else:
            first = tl.load(inputs + at, mask=at < inner, other=0.0)
            second = tl.load(inputs + at + 64, mask=at + 64 < inner, other=0.0)
        low, high = block_numbers(
            codes_ptr, scales_ptr, zeros_ptr, levels_ptr, skipped + n, block, skipped + outputs, blocks,
            groups, base, BLOCKS, BITS, NUMBERS, GROUP, RUN, ZEROS,
        )  # fmt: skip
        total += low * first.to(tl.float32)[None, :, :]
        total += high * second.to(tl.float32)[None, :, :]
    y = tl.sum(tl.sum(total, 2), 1)
    if BIAS:
        y += tl.load(bias_ptr + skipped + n, mask=n < outputs, other=0.0).to(tl.float32)
    at = out_ptr + place.to(tl.int64) * outputs + n
    tl.store(at, y.to(out_ptr.dtype.element_ty), mask=n < outputs)


@triton.jit(do_not_specialize=["base"])
def _tile_of_blocks(
    x_ptr, codes_ptr, scales_ptr, zeros_ptr, levels_ptr, bias_ptr, out_ptr, index_ptr, order_ptr, begins_ptr,
    x_stride, outputs, inner, blocks, groups, base, experts,
    DIVIDES: tl.constexpr, SORTED: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr, BLOCKS: tl.constexpr, STAGES: tl.constexpr, BIAS: tl.constexpr,
    WHOLE: tl.constexpr, BITS: tl.constexpr, NUMBERS: tl.constexpr, GROUP: tl.constexpr, RUN: tl.constexpr,
    ZEROS: tl.constexpr, WIDEN: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    across = tl.cdiv(outputs, OUTPUTS)
    tile = tl.program_id(0) // across
    expert, start, end = find_tile(begins_ptr, tile, experts, EXPERTS, ROWS)
    if expert >= experts:
        return
    n = tl.program_id(0) % across * OUTPUTS + tl.arange(0, OUTPUTS)
    m = start + tl.arange(0, ROWS)
    row = m
    if DIVIDES > 0:
        row = tl.load(order_ptr + m, mask=m < end, other=0) // DIVIDES
    skipped = expert * outputs
    byte = tl.arange(0, BLOCKS * 64)
    k = byte // 64 * 128 + byte % 64
    inputs = x_ptr + row.to(tl.int64)[None, :] * x_stride + k[:, None]
    total = tl.zeros([OUTPUTS, ROWS], dtype=tl.float32)
    for block in tl.range(0, blocks, BLOCKS, num_stages=STAGES):
        at, some = block * 128, m[None, :] < end
        if WHOLE:
            first = tl.load(inputs + at, mask=some, other=0.0)
            second = tl.load(inputs + at + 64, mask=some, other=0.0)
        else:
            left = inner - at - k[:, None]
            first = tl.load(inputs + at, mask=some & (left > 0), other=0.0)
            second = tl.load(inputs + at + 64, mask=some & (left > 64), other=0.0)
        low, high = block_numbers(
            codes_ptr, scales_ptr, zeros_ptr, levels_ptr, skipped + n, block, skipped + outputs, blocks,
            groups, base, BLOCKS, BITS, NUMBERS, GROUP, RUN, ZEROS,
        )  # fmt: skip
        low = tl.reshape(low.to(x_ptr.dtype.element_ty), [OUTPUTS, BLOCKS * 64])
        high = tl.reshape(high.to(x_ptr.dtype.element_ty), [OUTPUTS, BLOCKS * 64])
        if WIDEN:
            low, high = low.to(tl.float32), high.to(tl.float32)
            first, second = first.to(tl.float32), second.to(tl.float32)
        total = tl.dot(low, first, total, input_precision="ieee")
        total = tl.dot(high, second, total, input_precision="ieee")
    if BIAS:
        own = bias_ptr + skipped + n
        total += tl.load(own, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    at = out_ptr + m.to(tl.int64)[None, :] * outputs + n[:, None]
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=(n[:, None] < outputs) & (m[None, :] < end))
