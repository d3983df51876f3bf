"""A linear of a mixture's experts: each token's row times the weights of those that it has chosen.

Pairs of a token and an expert are sorted by the expert (`routing.py`), and a program computes some outputs
of up to so many pairs of one expert, the weights being the operand with many rows: an expert is read once
for all of them. A single token isn't sorted, and its pairs are multiplied by plain arithmetic. The inner
dimension is never divided. So a row's bits depend on the tile and on that row alone.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.gpu.mixtures import ExpertWeight, Routing
from inference.kernels.gpu.expert_tiles import ExpertTile, find_pair, find_tile, tiles_at_most
from inference.kernels.gpu.interpreter import interpreted
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier
from inference.kernels.gpu.quantised_experts import multiply_blocks
from inference.quantised.blocks import Blocks


def expert_linear(
    x: Tensor, weight: ExpertWeight, routing: Routing, gathers: bool, *, tile: ExpertTile
) -> Tensor:
    """Return (pairs, n) in the routing's order; what no expert computes is left as it is in memory.

    `x`: tokens (tokens, k) if it `gathers` them, else pairs (pairs, k) in that order. Raises ValueError
    if the numbers of a row don't lie side by side, or for a tile of several rows where nothing is sorted.
    """
    if x.stride(1) != 1:
        raise ValueError("the numbers of a row must lie side by side; call contiguous() first")
    if routing.order is None and tile.rows > 1:
        raise ValueError(f"a tile of {tile.rows} rows takes pairs that are sorted by their experts")
    result = torch.empty(routing.pairs, weight.outputs, dtype=x.dtype, device=x.device)
    if not routing.pairs:
        return result
    multiply = multiply_blocks if isinstance(weight.numbers, Blocks) else _multiply
    multiply(x, weight, routing, result, tile, divides=routing.chosen if gathers else 0)
    return result


def _multiply(
    x: Tensor, weight: ExpertWeight, routing: Routing, out: Tensor, tile: ExpertTile, *, divides: int
) -> None:
    numbers, bias = weight.numbers, weight.bias
    assert isinstance(numbers, Tensor), "others are in few bits"
    across = triton.cdiv(weight.outputs, tile.outputs)
    order, begins = routing.order, routing.begins
    single = tile.rows == 1
    launch(
        _expert_pair if single else _expert_tile,
        (across, routing.pairs) if single else (across * tiles_at_most(routing, tile.rows),),
        x, numbers, out if bias is None else bias, out, routing.index,
        routing.index if order is None else order, routing.index if begins is None else begins,
        x.stride(0), *numbers.stride(), weight.outputs, weight.inputs, weight.experts,
        DIVIDES=divides, SORTED=order is not None, EXPERTS=int(triton.next_power_of_2(weight.experts)),
        ROWS=tile.rows, OUTPUTS=tile.outputs, INNER=tile.inner, STAGES=tile.stages, BIAS=bias is not None,
        WHOLE=weight.inputs % tile.inner == 0, WIDEN=interpreted(),
        num_warps=tile.warps, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit
def _expert_pair(
    x_ptr, weight_ptr, bias_ptr, out_ptr, index_ptr, order_ptr, begins_ptr,
    x_stride, expert_stride, output_stride, input_stride, outputs, inner, experts,
    DIVIDES: tl.constexpr, SORTED: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr, BIAS: tl.constexpr,
    WHOLE: tl.constexpr, WIDEN: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    place = tl.program_id(1)
    pair, expert = find_pair(index_ptr, order_ptr, begins_ptr, place, experts, SORTED)
    if (expert < 0) | (expert >= experts):
        return
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INNER)
    row = place
    if DIVIDES > 0:
        row = pair // DIVIDES
    inputs = x_ptr + row.to(tl.int64) * x_stride + k
    weights = weight_ptr + expert.to(tl.int64) * expert_stride
    weights += n.to(tl.int64)[:, None] * output_stride + k.to(tl.int64)[None, :] * input_stride
    total = tl.zeros([OUTPUTS, INNER], dtype=tl.float32)
    for start in tl.range(0, inner, INNER, num_stages=STAGES):
        at = start * input_stride
        if WHOLE:
            x = tl.load(inputs + start)
            w = tl.load(weights + at, mask=n[:, None] < outputs, other=0.0)
        else:
            x = tl.load(inputs + start, mask=start + k < inner, other=0.0)
            inside = (n[:, None] < outputs) & (start + k[None, :] < inner)
            w = tl.load(weights + at, mask=inside, other=0.0)
        total += w.to(tl.float32) * x.to(tl.float32)[None, :]
    y = tl.sum(total, 1)
    if BIAS:
        own = bias_ptr + expert.to(tl.int64) * outputs + n
        y += tl.load(own, mask=n < outputs, other=0.0).to(tl.float32)
    at = out_ptr + place.to(tl.int64) * outputs + n
    tl.store(at, y.to(out_ptr.dtype.element_ty), mask=n < outputs)


@triton.jit
def _expert_tile(
    x_ptr, weight_ptr, bias_ptr, out_ptr, index_ptr, order_ptr, begins_ptr,
    x_stride, expert_stride, output_stride, input_stride, outputs, inner, experts,
    DIVIDES: tl.constexpr, SORTED: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr, BIAS: tl.constexpr,
    WHOLE: tl.constexpr, WIDEN: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    across = tl.cdiv(outputs, OUTPUTS)
    tile = tl.program_id(0) // across
    expert, first, end = find_tile(begins_ptr, tile, experts, EXPERTS, ROWS)
    if expert >= experts:
        return
    n = tl.program_id(0) % across * OUTPUTS + tl.arange(0, OUTPUTS)
    m = first + tl.arange(0, ROWS)
    k = tl.arange(0, INNER)
    row = m
    if DIVIDES > 0:
        row = tl.load(order_ptr + m, mask=m < end, other=0) // DIVIDES
    inputs = x_ptr + row.to(tl.int64)[None, :] * x_stride + k[:, None]
    weights = weight_ptr + expert.to(tl.int64) * expert_stride
    weights += n.to(tl.int64)[:, None] * output_stride + k.to(tl.int64)[None, :] * input_stride
    total = tl.zeros([OUTPUTS, ROWS], dtype=tl.float32)
    for start in tl.range(0, inner, INNER, num_stages=STAGES):
        at = start * input_stride
        if WHOLE:
            x = tl.load(inputs + start, mask=m[None, :] < end, other=0.0)
            w = tl.load(weights + at, mask=n[:, None] < outputs, other=0.0)
        else:
            x = tl.load(inputs + start, mask=(m[None, :] < end) & (start + k[:, None] < inner), other=0.0)
            inside = (n[:, None] < outputs) & (start + k[None, :] < inner)
            w = tl.load(weights + at, mask=inside, other=0.0)
        if WIDEN:
            x, w = x.to(tl.float32), w.to(tl.float32)
        total = tl.dot(w, x, total, input_precision="ieee")
    if BIAS:
        own = bias_ptr + expert.to(tl.int64) * outputs + n
        total += tl.load(own, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    at = out_ptr + m.to(tl.int64)[None, :] * outputs + n[:, None]
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=(n[:, None] < outputs) & (m[None, :] < end))
