"""y = x @ weight.T + bias for few rows x: the weights are read once, as fast as memory gives them.

One row is multiplied by plain arithmetic; 2 to 16 rows by the matrix units, the weights being the
operand with many rows. Where a matrix is too small to give every processor enough to do, its inner
dimension is divided too, and a second kernel adds the parts up in their order: nothing is atomic.
So a row's bits depend on the shape of the weights and on whether it is alone, not on its neighbours.
`tiles` offers several, to be measured at warm-up.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.kernels.gpu.interpreter import interpreted
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier, fetch_rows

MOST_ROWS = 16
LOAD = 16  # bytes that a thread loads at once
THREADS = 128  # of a program, for one row
_AHEAD_BYTES = 32 << 10  # of weights that a program asks for before it waits: 1.04 times as fast as none
_LEAST_INNER = 512  # numbers that a part of the inner dimension has at least


@dataclass(frozen=True, slots=True)
class Tile:
    """How a program goes through the weights."""

    outputs: int  # rows of the weights
    inner: int  # columns of one turn
    parts: int  # of the inner dimension, each a program's
    matrix: bool  # by the matrix units
    warps: int = 4
    stages: int = 1  # turns whose loads are in flight


# Those of an H100's best for models of 0.5 and 8 billion parameters in bfloat16 that arithmetic doesn't find,
# among 15 to 60 for each shape: up to a fifth faster than those it finds. By whether there is one row
_MEASURED = {
    True: (Tile(8, 1024, 1, False, 8, 3), Tile(1, 2048, 1, False, 8, 1), Tile(2, 2048, 1, False, 4, 3)),
    False: (Tile(64, 128, 4, True, 4, 4), Tile(64, 256, 2, True, 4, 4), Tile(32, 256, 4, True, 4, 4)),
}


def small_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, tile: Tile | None = None, out: Tensor | None = None
) -> Tensor:
    """Return (M, N) of inputs (M, K), M at most 16, a weight (N, K) of the same dtype and a bias (N,).

    Raises ValueError for more rows, or if the numbers of a row don't lie side by side.
    """
    rows, inner = x.shape
    if rows > MOST_ROWS:
        raise ValueError(f"small_linear takes {MOST_ROWS} rows, got {rows}; use invariant_linear or torch's")
    if x.stride(1) != 1 or weight.stride(1) != 1:
        raise ValueError("the numbers of a row must lie side by side; call contiguous() first")
    outputs = weight.shape[0]
    result = x.new_empty(rows, outputs) if out is None else out
    if not rows:
        return result
    tile = tile or next(tiles(rows, outputs, inner, x.dtype, processors(x.device)))
    if rows > 1 and not tile.matrix:
        raise ValueError(f"a tile without the matrix units takes 1 row, got {rows}")
    target = result
    if tile.parts > 1:
        target = torch.empty(tile.parts, rows, outputs, dtype=torch.float32, device=x.device)
    _multiply(x, weight, bias, target, tile)
    if tile.parts > 1:
        add_parts(target, bias, result)
    return result


def add_parts(parts: Tensor, bias: Tensor | None, out: Tensor) -> None:
    """Write to `out` (M, N) the sums of parts (P, M, N) float32 in their order, and of the bias (N,)."""
    (count, rows, outputs), block = parts.shape, 256
    launch(
        _add_parts, (rows, triton.cdiv(outputs, block)),
        parts, out if bias is None else bias, out, out.stride(0), outputs, rows * outputs,
        PARTS=count, BIAS=bias is not None, BLOCK=block, num_warps=2, enable_fp_fusion=True,
    )  # fmt: skip


def tiles(rows: int, outputs: int, inner: int, dtype: torch.dtype, processors: int) -> Iterator[Tile]:
    """Yield the tile that arithmetic prefers, then others worth measuring."""
    sizes, stages = ((8, 4, 2, 1), (1, 3)) if rows == 1 else ((64, 32, 16), (4,))
    wide = LOAD // dtype.itemsize * THREADS // (1 if rows == 1 else 4)
    known = set()
    for least in (3, 2, 6):  # programs for each processor
        size = next((n for n in sizes if -(-outputs // n) >= least * processors), sizes[-1])
        depth = min(wide // 2 if size == 64 else wide, max(16, _power(inner)))
        missing = _power(max(1, processors // -(-outputs // size)))
        parts = min(missing, max(1, inner // _LEAST_INNER))
        for count in stages:
            tile = Tile(size, depth, parts, rows > 1, stages=count)
            if tile not in known:
                known.add(tile)
                yield tile
    for tile in _MEASURED[rows == 1]:
        if (
            tile not in known
            and dtype.itemsize == 2
            and inner >= tile.inner
            and inner // tile.parts >= _LEAST_INNER
        ):
            yield tile


@lru_cache
def processors(device: torch.device) -> int:
    """Return a device's multiprocessors; a few where it has none, so that tests divide the work too."""
    if device.type != "cuda":
        return 4
    return int(torch.cuda.get_device_properties(device).multi_processor_count)


def ahead(weight: Tensor, outputs: int) -> int:
    """Return how many bytes of each row of weights a program asks for before it waits, or 0."""
    size = weight.element_size()
    if weight.stride(0) * size % LOAD or weight.shape[1] * size % LOAD or weight.data_ptr() % LOAD:
        return 0
    return _AHEAD_BYTES // outputs // LOAD * LOAD


def _power(number: int) -> int:
    return int(triton.next_power_of_2(number))


def _multiply(x: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor, tile: Tile) -> None:
    rows, inner = x.shape
    outputs = weight.shape[0]
    launch(
        _rows if tile.matrix else _row, (triton.cdiv(outputs, tile.outputs), tile.parts),
        x, weight, x if bias is None else bias, target,
        x.stride(0), weight.stride(0), outputs if tile.parts > 1 else target.stride(0), rows, outputs, inner,
        OUTPUTS=tile.outputs, INNER=tile.inner, PARTS=tile.parts, STAGES=tile.stages,
        BIAS=bias is not None and tile.parts == 1, WHOLE=inner % (tile.inner * tile.parts) == 0,
        WIDEN=interpreted(), AHEAD=ahead(weight, tile.outputs), num_warps=tile.warps, enable_fp_fusion=True,
    )  # fmt: skip


@triton.jit
def _bounds(inner: tl.tensor, INNER: tl.constexpr, PARTS: tl.constexpr) -> tl.tensor:
    """Return where a program's part of the inner dimension begins and ends."""
    size = tl.cdiv(tl.cdiv(inner, PARTS), INNER) * INNER
    first = tl.program_id(1) * size
    return first, tl.minimum(first + size, inner)


@triton.jit(do_not_specialize=["rows"])
def _row(
    x_ptr, weight_ptr, bias_ptr, out_ptr, x_stride, weight_stride, out_stride, rows, outputs, inner,
    OUTPUTS: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr, BIAS: tl.constexpr,
    WHOLE: tl.constexpr, WIDEN: tl.constexpr, AHEAD: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    k = tl.arange(0, INNER)
    first, last = _bounds(inner, INNER, PARTS)
    fetch_rows(weight_ptr + first, weight_stride, 0, outputs, last - first, OUTPUTS, AHEAD, OVERLAPS)
    await_earlier(OVERLAPS)
    weights = weight_ptr + n.to(tl.int64)[:, None] * weight_stride + k[None, :]
    total = tl.zeros([OUTPUTS, INNER], dtype=tl.float32)
    for start in tl.range(first, last, INNER, num_stages=STAGES):
        if WHOLE:
            x = tl.load(x_ptr + start + k)
            w = tl.load(weights + start, mask=n[:, None] < outputs, other=0.0)
        else:
            x = tl.load(x_ptr + start + k, mask=start + k < last, other=0.0)
            w = tl.load(weights + start, mask=(n[:, None] < outputs) & (start + k[None, :] < last), other=0.0)
        total += w.to(tl.float32) * x.to(tl.float32)[None, :]
    y = tl.sum(total, 1)
    if BIAS:
        y += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)
    at = out_ptr + tl.program_id(1) * outputs + n  # of one part there is only the first
    tl.store(at, y.to(out_ptr.dtype.element_ty), mask=n < outputs)


@triton.jit(do_not_specialize=["rows"])
def _rows(
    x_ptr, weight_ptr, bias_ptr, out_ptr, x_stride, weight_stride, out_stride, rows, outputs, inner,
    OUTPUTS: tl.constexpr, INNER: tl.constexpr, PARTS: tl.constexpr, STAGES: tl.constexpr, BIAS: tl.constexpr,
    WHOLE: tl.constexpr, WIDEN: tl.constexpr, AHEAD: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    n = tl.program_id(0) * OUTPUTS + tl.arange(0, OUTPUTS)
    m = tl.arange(0, 16)
    k = tl.arange(0, INNER)
    first, last = _bounds(inner, INNER, PARTS)
    fetch_rows(weight_ptr + first, weight_stride, 0, outputs, last - first, OUTPUTS, AHEAD, OVERLAPS)
    await_earlier(OVERLAPS)
    weights = weight_ptr + n.to(tl.int64)[:, None] * weight_stride + k[None, :]
    inputs = x_ptr + m[None, :] * x_stride + k[:, None]
    total = tl.zeros([OUTPUTS, 16], dtype=tl.float32)
    for start in tl.range(first, last, INNER, num_stages=STAGES):
        if WHOLE:
            x = tl.load(inputs + start, mask=m[None, :] < rows, other=0.0)
            w = tl.load(weights + start, mask=n[:, None] < outputs, other=0.0)
        else:
            x = tl.load(inputs + start, mask=(m[None, :] < rows) & (start + k[:, None] < last), other=0.0)
            w = tl.load(weights + start, mask=(n[:, None] < outputs) & (start + k[None, :] < last), other=0.0)
        if WIDEN:
            x, w = x.to(tl.float32), w.to(tl.float32)
        total = tl.dot(w, x, total, input_precision="ieee")
    if BIAS:
        total += tl.load(bias_ptr + n, mask=n < outputs, other=0.0).to(tl.float32)[:, None]
    at = out_ptr + (tl.program_id(1) * rows + m)[None, :] * out_stride + n[:, None]
    inside = (n[:, None] < outputs) & (m[None, :] < rows)
    tl.store(at, total.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit(do_not_specialize=["plane"])
def _add_parts(
    parts_ptr, bias_ptr, out_ptr, out_stride, outputs, plane,
    PARTS: tl.constexpr, BIAS: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    row = tl.program_id(0)
    n = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = n < outputs
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for part in range(PARTS):  # always in this order
        total += tl.load(parts_ptr + part * plane + row * outputs + n, mask=inside, other=0.0)
    if BIAS:
        total += tl.load(bias_ptr + n, mask=inside, other=0.0).to(tl.float32)
    tl.store(out_ptr + row * out_stride + n, total.to(out_ptr.dtype.element_ty), mask=inside)
