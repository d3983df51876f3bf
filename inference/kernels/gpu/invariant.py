"""y = x @ weight.T + bias by one tile and one order of summation, whatever the number of rows; also of heads.

A row's bits are then the same alone and in any batch, in a prompt's chunk and in a decode. The tile
is a function of the weights' shape and dtype only; the kernel isn't specialised for the number of
rows. What it costs beside cuBLAS, benchmarks/gpu prints: tiles are high, because they also serve
prompts, so a decode leaves most of each unused.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.kernels.gpu.interpreter import interpreted
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier

_GROUP = 8  # tiles of rows that go along the weights together, so that both are found in the cache


@dataclass(frozen=True, slots=True)
class Block:
    """What a program computes, and how."""

    rows: int
    outputs: int
    inner: int
    warps: int
    stages: int


def invariant_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, out: Tensor | None = None) -> Tensor:
    """Return (M, N) of inputs (M, K), a weight (N, K) of the same dtype and a bias (N,).

    Raises ValueError if the numbers of a row don't lie side by side.
    """
    if x.stride(1) != 1 or weight.stride(1) != 1:
        raise ValueError("the numbers of a row must lie side by side; call contiguous() first")
    (rows, inner), outputs = x.shape, weight.shape[0]
    result = x.new_empty(rows, outputs) if out is None else out
    if rows:
        block = block_of(outputs, inner, x.dtype)
        grid = (triton.cdiv(rows, block.rows) * triton.cdiv(outputs, block.outputs),)
        launch(
            _tile, grid,
            x, weight, x if bias is None else bias, result,
            x.stride(0), *weight.stride(), result.stride(0), 0, 0, 0, rows, outputs, inner,
            ROWS=block.rows, OUTPUTS=block.outputs, INNER=block.inner, GROUP=_GROUP,
            BIAS=bias is not None, WHOLE=inner % block.inner == 0, WIDEN=interpreted(),
            num_warps=block.warps, num_stages=block.stages, enable_fp_fusion=True,
        )  # fmt: skip
    return result


def invariant_heads(x: Tensor, weight: Tensor, *, out: Tensor | None = None) -> Tensor:
    """Return (M, H, N) of inputs (M, H, K) and each head's weight (H, N, K) of the same dtype.

    They may have any strides, but numbers of an input's head, and of a result's, lie side by side.
    """
    if x.stride(2) != 1 or (out is not None and out.stride(2) != 1):
        raise ValueError("the numbers of a head must lie side by side; call contiguous() first")
    (rows, heads, inner), outputs = x.shape, weight.shape[1]
    result = x.new_empty(rows, heads, outputs) if out is None else out
    if rows:
        block = block_of(outputs, inner, x.dtype)
        launch(
            _tile, (triton.cdiv(rows, block.rows) * triton.cdiv(outputs, block.outputs), heads),
            x, weight, x, result,
            x.stride(0), *weight.stride()[1:], result.stride(0),
            x.stride(1), weight.stride(0), result.stride(1), rows, outputs, inner,
            ROWS=block.rows, OUTPUTS=block.outputs, INNER=block.inner, GROUP=_GROUP,
            BIAS=False, WHOLE=inner % block.inner == 0, WIDEN=interpreted(),
            num_warps=block.warps, num_stages=block.stages, enable_fp_fusion=True,
        )  # fmt: skip
    return result


def block_of(outputs: int, inner: int, dtype: torch.dtype) -> Block:
    """Return the tile for weights (outputs, inner); the rows have no say."""
    if dtype.itemsize > 2:  # no matrix units for exact float32: registers are the limit
        return Block(32, 32, 32, 4, 3) if inner > 16 else Block(32, 32, 16, 4, 3)
    depth = 64 if inner >= 64 else 16
    if outputs >= 16384:
        return Block(128, 128, depth, 8, 4)
    return Block(64, 64 if outputs >= 4096 else 32, depth, 4, 5)


@triton.jit(do_not_specialize=["rows"])
def _tile(
    x_ptr, weight_ptr, bias_ptr, out_ptr, x_stride, weight_stride, weight_inner, out_stride,
    x_head, weight_head, out_head, rows, outputs, inner,
    ROWS: tl.constexpr, OUTPUTS: tl.constexpr, INNER: tl.constexpr, GROUP: tl.constexpr, BIAS: tl.constexpr,
    WHOLE: tl.constexpr, WIDEN: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    across, down = tl.cdiv(outputs, OUTPUTS), tl.cdiv(rows, ROWS)
    group = tl.program_id(0) // (GROUP * across)
    height = tl.minimum(down - group * GROUP, GROUP)
    within = tl.program_id(0) % (GROUP * across)
    m = (group * GROUP + within % height) * ROWS + tl.arange(0, ROWS)
    n = within // height * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INNER)
    head = tl.program_id(1).to(tl.int64)
    inputs = x_ptr + head * x_head + m.to(tl.int64)[:, None] * x_stride + k[None, :]
    weights = weight_ptr + head * weight_head + n.to(tl.int64)[None, :] * weight_stride
    weights += k[:, None] * weight_inner
    total = tl.zeros([ROWS, OUTPUTS], dtype=tl.float32)
    for start in range(0, inner, INNER):
        if WHOLE:
            x = tl.load(inputs + start, mask=m[:, None] < rows, other=0.0)
            w = tl.load(weights + start * weight_inner, mask=n[None, :] < outputs, other=0.0)
        else:
            x = tl.load(inputs + start, mask=(m[:, None] < rows) & (start + k[None, :] < inner), other=0.0)
            known = (n[None, :] < outputs) & (start + k[:, None] < inner)
            w = tl.load(weights + start * weight_inner, mask=known, other=0.0)
        if WIDEN:
            x, w = x.to(tl.float32), w.to(tl.float32)
        total = tl.dot(x, w, total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)[None, :]
    inside = (m[:, None] < rows) & (n[None, :] < outputs)
    at = out_ptr + head * out_head + m.to(tl.int64)[:, None] * out_stride + n[None, :]
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=inside)
