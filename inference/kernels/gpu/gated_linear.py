"""activation(x @ gate.T) * (x @ up.T) for few rows x: a merged linear and its gate in one kernel.

A program computes the same outputs of gate and up, so nothing between the two is written or rounded,
and a layer has a kernel less. As in linear.py one row is multiplied by plain arithmetic and more by
the matrix units; the inner dimension is never divided.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.kernels.gpu.activation import ACTIVATIONS, activate
from inference.kernels.gpu.interpreter import interpreted
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.linear import LOAD, MOST_ROWS, THREADS, Tile, ahead, processors
from inference.kernels.gpu.overlap import await_earlier, fetch_rows


def gated_linear(
    x: Tensor,
    gate_up: Tensor,
    bias: Tensor | None,
    activation: str,
    *,
    tile: Tile | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return (M, I) of inputs (M, K), M at most 16, weights (2 * I, K), gate first, and a bias (2 * I,).

    Raises ValueError for more rows, or if the numbers of a row don't lie side by side; KeyError for
    an activation that isn't known.
    """
    (rows, inner), outputs = x.shape, gate_up.shape[0] // 2
    if rows > MOST_ROWS:
        raise ValueError(f"gated_linear takes {MOST_ROWS} rows, got {rows}; use a linear and gated")
    if x.stride(1) != 1 or gate_up.stride(1) != 1:
        raise ValueError("the numbers of a row must lie side by side; call contiguous() first")
    result = x.new_empty(rows, outputs) if out is None else out
    if not rows:
        return result
    tile = tile or next(gated_tiles(rows, outputs, inner, x.dtype, processors(x.device)))
    launch(
        _gated_rows if tile.matrix else _gated_row, (triton.cdiv(outputs, tile.outputs),),
        x, gate_up, x if bias is None else bias, result,
        x.stride(0), gate_up.stride(0), result.stride(0), rows, outputs, inner,
        OUTPUTS=tile.outputs, INNER=tile.inner, STAGES=tile.stages, ACTIVATION=ACTIVATIONS[activation],
        BIAS=bias is not None, WHOLE=inner % tile.inner == 0, WIDEN=interpreted(),
        AHEAD=ahead(gate_up, 2 * tile.outputs),
        num_warps=tile.warps, enable_fp_fusion=True,
    )  # fmt: skip
    return result


def gated_tiles(rows: int, outputs: int, inner: int, dtype: torch.dtype, processors: int) -> Iterator[Tile]:
    """Yield the tile that arithmetic prefers, then others worth measuring; `outputs`: of the gate."""
    wide = LOAD // dtype.itemsize * THREADS
    depth = min(wide if rows == 1 else wide // 4, max(16, int(triton.next_power_of_2(inner))))
    sizes = (4, 2) if rows == 1 else (16, 32)
    preferred = next((size for size in sizes if -(-outputs // size) >= 3 * processors), sizes[0])
    for size in sorted(sizes, key=lambda size: size != preferred):
        yield Tile(size, depth, 1, rows > 1, stages=1 if rows == 1 else 3)
    if rows == 1 and dtype.itemsize == 2:
        yield Tile(8, depth, 1, False, warps=8)
        if inner >= 2 * depth:
            yield Tile(2, 2 * depth, 1, False, warps=8)


@triton.jit(do_not_specialize=["rows"])
def _gated_row(
    x_ptr, weight_ptr, bias_ptr, out_ptr, x_stride, weight_stride, out_stride, rows, outputs, inner,
    OUTPUTS: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr, ACTIVATION: tl.constexpr,
    BIAS: tl.constexpr, WHOLE: tl.constexpr, WIDEN: tl.constexpr, AHEAD: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    fetch_rows(weight_ptr, weight_stride, 0, outputs, inner, OUTPUTS, AHEAD, OVERLAPS)
    fetch_rows(weight_ptr, weight_stride, outputs, outputs, inner, OUTPUTS, AHEAD, OVERLAPS)
    await_earlier(OVERLAPS)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INNER)
    gates = weight_ptr + n.to(tl.int64)[:, None] * weight_stride + k[None, :]
    ups = weight_ptr + (n.to(tl.int64) + outputs)[:, None] * weight_stride + k[None, :]
    gate = tl.zeros([OUTPUTS, INNER], dtype=tl.float32)
    up = tl.zeros([OUTPUTS, INNER], dtype=tl.float32)
    for start in tl.range(0, inner, INNER, num_stages=STAGES):
        if WHOLE:
            inside = n[:, None] < outputs
            x = tl.load(x_ptr + start + k)
        else:
            inside = (n[:, None] < outputs) & (start + k[None, :] < inner)
            x = tl.load(x_ptr + start + k, mask=start + k < inner, other=0.0)
        a = tl.load(gates + start, mask=inside, other=0.0)
        b = tl.load(ups + start, mask=inside, other=0.0)
        x = x.to(tl.float32)[None, :]
        gate += a.to(tl.float32) * x
        up += b.to(tl.float32) * x
    g, u = tl.sum(gate, 1), tl.sum(up, 1)
    if BIAS:
        g += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)
        u += tl.load(bias_ptr + outputs + n, mask=n < outputs, other=0.0).to(tl.float32)
    y = activate(g, ACTIVATION) * u
    tl.store(out_ptr + n, y.to(out_ptr.dtype.element_ty), mask=n < outputs)


@triton.jit(do_not_specialize=["rows"])
def _gated_rows(
    x_ptr, weight_ptr, bias_ptr, out_ptr, x_stride, weight_stride, out_stride, rows, outputs, inner,
    OUTPUTS: tl.constexpr, INNER: tl.constexpr, STAGES: tl.constexpr, ACTIVATION: tl.constexpr,
    BIAS: tl.constexpr, WHOLE: tl.constexpr, WIDEN: tl.constexpr, AHEAD: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    fetch_rows(weight_ptr, weight_stride, 0, outputs, inner, OUTPUTS, AHEAD, OVERLAPS)
    fetch_rows(weight_ptr, weight_stride, outputs, outputs, inner, OUTPUTS, AHEAD, OVERLAPS)
    await_earlier(OVERLAPS)
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    m = tl.arange(0, 16)
    k = tl.arange(0, INNER)
    gates = weight_ptr + n.to(tl.int64)[:, None] * weight_stride + k[None, :]
    ups = weight_ptr + (n.to(tl.int64) + outputs)[:, None] * weight_stride + k[None, :]
    inputs = x_ptr + m[None, :] * x_stride + k[:, None]
    gate = tl.zeros([OUTPUTS, 16], dtype=tl.float32)
    up = tl.zeros([OUTPUTS, 16], dtype=tl.float32)
    for start in tl.range(0, inner, INNER, num_stages=STAGES):
        if WHOLE:
            inside = n[:, None] < outputs
            x = tl.load(inputs + start, mask=m[None, :] < rows, other=0.0)
        else:
            inside = (n[:, None] < outputs) & (start + k[None, :] < inner)
            x = tl.load(inputs + start, mask=(m[None, :] < rows) & (start + k[:, None] < inner), other=0.0)
        a = tl.load(gates + start, mask=inside, other=0.0)
        b = tl.load(ups + start, mask=inside, other=0.0)
        if WIDEN:
            x, a, b = x.to(tl.float32), a.to(tl.float32), b.to(tl.float32)
        gate = tl.dot(a, x, gate, input_precision="ieee")
        up = tl.dot(b, x, up, input_precision="ieee")
    if BIAS:
        gate += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
        up += tl.load(bias_ptr + outputs + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    y = activate(gate, ACTIVATION) * up
    at = out_ptr + m[None, :] * out_stride + n[:, None]
    inside = (n[:, None] < outputs) & (m[None, :] < rows)
    tl.store(at, y.to(out_ptr.dtype.element_ty), mask=inside)
