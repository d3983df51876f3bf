"""A linear of a mixture's experts: each token's row times the weights of those that it has chosen.

Pairs of a token and an expert are sorted by the expert (`routing.py`), and a program computes some outputs
of up to so many pairs of one expert, the weights being the operand with many rows: an expert is read once
for all of them. A single token isn't sorted, and its pairs are multiplied by plain arithmetic. The inner
dimension is never divided. So a row's bits depend on the tile and on that row alone. With a gate behind
it a program computes the same outputs of gate and up: nothing between the two is written or rounded.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.gpu.mixtures import ExpertWeight, Routing
from inference.kernels.gating import Gating
from inference.kernels.gpu.activation import ACTIVATIONS, gate_within, gated_by
from inference.kernels.gpu.expert_tiles import ExpertTile, find_pair, find_tile, tiles_at_most
from inference.kernels.gpu.interpreter import interpreted
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier
from inference.kernels.gpu.quantised_experts import multiply_blocks
from inference.quantised.blocks import Blocks

_LEAST_OUTPUTS = 16  # that the matrix units multiply


def expert_linear(
    x: Tensor,
    weight: ExpertWeight,
    routing: Routing,
    gathers: bool,
    gate: Gating | None = None,
    *,
    tile: ExpertTile,
) -> Tensor:
    """Return (pairs, n) in the routing's order; what no expert computes is left as it is in memory.

    `x`: tokens (tokens, k) if it `gathers` them, else pairs (pairs, k) in that order. With a gate
    (pairs, n / 2). Raises ValueError if the numbers of a row don't lie side by side, or for a tile of several
    rows where nothing is sorted.
    """
    if x.stride(1) != 1:
        raise ValueError("the numbers of a row must lie side by side; call contiguous() first")
    if routing.order is None and tile.rows > 1:
        raise ValueError(f"a tile of {tile.rows} rows takes pairs that are sorted by their experts")
    narrow = isinstance(weight.numbers, Blocks)
    outputs = weight.outputs if gate is None or narrow else weight.outputs // 2
    result = torch.empty(routing.pairs, outputs, dtype=x.dtype, device=x.device)
    divides = routing.chosen if gathers else 0
    if not routing.pairs:
        return result if not narrow or gate is None else result[:, : weight.outputs // 2]
    if not narrow:
        _multiply(x, weight, routing, result, tile, gate, divides=divides)
        return result
    multiply_blocks(x, weight, routing, result, tile, divides=divides)
    return result if gate is None else gated_by(result, gate)


def _multiply(
    x: Tensor,
    weight: ExpertWeight,
    routing: Routing,
    out: Tensor,
    tile: ExpertTile,
    gate: Gating | None,
    *,
    divides: int,
) -> None:
    numbers, bias = weight.numbers, weight.bias
    assert isinstance(numbers, Tensor), "others are in few bits"
    single, outputs = tile.rows == 1, tile.outputs
    if gate is not None:  # twice as many are read
        outputs = max(outputs // 2, 1 if single else _LEAST_OUTPUTS)
    across = triton.cdiv(out.shape[1], outputs)
    order, begins = routing.order, routing.begins
    how = gate or Gating()
    launch(
        _expert_pair if single else _expert_tile,
        (across, routing.pairs) if single else (across * tiles_at_most(routing, tile.rows),),
        x, numbers, out if bias is None else bias, out, routing.index,
        routing.index if order is None else order, routing.index if begins is None else begins,
        x.stride(0), *numbers.stride(), out.shape[1], weight.inputs, weight.experts,
        how.limit, how.factor, how.offset,
        GATED=0 if gate is None else 2 if gate.alternating else 1, ACTIVATION=ACTIVATIONS[how.activation],
        SLOPED=how.factor != 1.0, DIVIDES=divides, SORTED=order is not None,
        EXPERTS=int(triton.next_power_of_2(weight.experts)),
        ROWS=tile.rows, OUTPUTS=outputs, INNER=tile.inner, STAGES=tile.stages, BIAS=bias is not None,
        WHOLE=weight.inputs % tile.inner == 0, WIDEN=interpreted(),
        num_warps=tile.warps, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit
def _places(n, outputs, GATED: tl.constexpr) -> tl.tensor:
    """Return which outputs of a weight are multiplied for results: of the gate, and of up."""
    first, second = n, outputs + n
    if GATED == 2:
        first, second = 2 * n, 2 * n + 1
    return first, second


@triton.jit
def _expert_pair(
    x_ptr, weight_ptr, bias_ptr, out_ptr, index_ptr, order_ptr, begins_ptr,
    x_stride, expert_stride, output_stride, input_stride, outputs, inner, experts, limit, slope, shift,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr, SLOPED: tl.constexpr,
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
    first, second = _places(n, outputs, GATED)
    inputs = x_ptr + row.to(tl.int64) * x_stride + k
    own = weight_ptr + expert.to(tl.int64) * expert_stride
    weights = own + first.to(tl.int64)[:, None] * output_stride + k.to(tl.int64)[None, :] * input_stride
    ups = own + second.to(tl.int64)[:, None] * output_stride + k.to(tl.int64)[None, :] * input_stride
    total = tl.zeros([OUTPUTS, INNER], dtype=tl.float32)
    total_up = tl.zeros([OUTPUTS, INNER], dtype=tl.float32)
    for start in tl.range(0, inner, INNER, num_stages=STAGES):
        at = start * input_stride
        if WHOLE:
            inside = n[:, None] < outputs
            x = tl.load(inputs + start)
        else:
            inside = (n[:, None] < outputs) & (start + k[None, :] < inner)
            x = tl.load(inputs + start, mask=start + k < inner, other=0.0)
        x = x.to(tl.float32)[None, :]
        total += tl.load(weights + at, mask=inside, other=0.0).to(tl.float32) * x
        if GATED > 0:
            total_up += tl.load(ups + at, mask=inside, other=0.0).to(tl.float32) * x
    y = tl.sum(total, 1)
    biases = bias_ptr + expert.to(tl.int64) * (outputs * (2 if GATED > 0 else 1))
    if BIAS:
        y += tl.load(biases + first, mask=n < outputs, other=0.0).to(tl.float32)
    if GATED > 0:
        up = tl.sum(total_up, 1)
        if BIAS:
            up += tl.load(biases + second, mask=n < outputs, other=0.0).to(tl.float32)
        y = gate_within(y, up, limit, slope, shift, ACTIVATION, SLOPED)
    at = out_ptr + place.to(tl.int64) * outputs + n
    tl.store(at, y.to(out_ptr.dtype.element_ty), mask=n < outputs)


@triton.jit
def _expert_tile(
    x_ptr, weight_ptr, bias_ptr, out_ptr, index_ptr, order_ptr, begins_ptr,
    x_stride, expert_stride, output_stride, input_stride, outputs, inner, experts, limit, slope, shift,
    GATED: tl.constexpr, ACTIVATION: tl.constexpr, SLOPED: tl.constexpr,
    DIVIDES: tl.constexpr, SORTED: tl.constexpr, EXPERTS: tl.constexpr, ROWS: tl.constexpr,
    OUTPUTS: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr, BIAS: tl.constexpr,
    WHOLE: tl.constexpr, WIDEN: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    across = tl.cdiv(outputs, OUTPUTS)
    tile = tl.program_id(0) // across
    expert, begin, end = find_tile(begins_ptr, tile, experts, EXPERTS, ROWS)
    if expert >= experts:
        return
    n = tl.program_id(0) % across * OUTPUTS + tl.arange(0, OUTPUTS)
    m = begin + tl.arange(0, ROWS)
    k = tl.arange(0, INNER)
    row = m
    if DIVIDES > 0:
        row = tl.load(order_ptr + m, mask=m < end, other=0) // DIVIDES
    first, second = _places(n, outputs, GATED)
    inputs = x_ptr + row.to(tl.int64)[None, :] * x_stride + k[:, None]
    own = weight_ptr + expert.to(tl.int64) * expert_stride
    weights = own + first.to(tl.int64)[:, None] * output_stride + k.to(tl.int64)[None, :] * input_stride
    ups = own + second.to(tl.int64)[:, None] * output_stride + k.to(tl.int64)[None, :] * input_stride
    total = tl.zeros([OUTPUTS, ROWS], dtype=tl.float32)
    total_up = tl.zeros([OUTPUTS, ROWS], dtype=tl.float32)
    for start in tl.range(0, inner, INNER, num_stages=STAGES):
        at = start * input_stride
        if WHOLE:
            inside = n[:, None] < outputs
            x = tl.load(inputs + start, mask=m[None, :] < end, other=0.0)
        else:
            inside = (n[:, None] < outputs) & (start + k[None, :] < inner)
            x = tl.load(inputs + start, mask=(m[None, :] < end) & (start + k[:, None] < inner), other=0.0)
        w = tl.load(weights + at, mask=inside, other=0.0)
        if WIDEN:
            x, w = x.to(tl.float32), w.to(tl.float32)
        total = tl.dot(w, x, total, input_precision="ieee")
        if GATED > 0:
            w = tl.load(ups + at, mask=inside, other=0.0)
            if WIDEN:
                w = w.to(tl.float32)
            total_up = tl.dot(w, x, total_up, input_precision="ieee")
    biases = bias_ptr + expert.to(tl.int64) * (outputs * (2 if GATED > 0 else 1))
    if BIAS:
        total += tl.load(biases + first, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    if GATED > 0:
        if BIAS:
            total_up += tl.load(biases + second, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
        total = gate_within(total, total_up, limit, slope, shift, ACTIVATION, SLOPED)
    at = out_ptr + m.to(tl.int64)[None, :] * outputs + n[:, None]
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=(n[:, None] < outputs) & (m[None, :] < end))
