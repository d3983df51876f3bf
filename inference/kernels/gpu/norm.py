"""Root-mean-square norm, alone or after an addition to the residual stream, in one pass.

A program norms a row, so a row's bits depend on nothing but the row. Sums are float32; the result
is rounded once. Warps are what a row of 16-byte loads fills.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier

_WIDEST = 1 << 16  # numbers of a row that one program can hold


def rms_norm(x: Tensor, weight: Tensor, eps: float, *, out: Tensor | None = None) -> Tensor:
    """Return x (T, h) normed and times the weight (h,), which is float32 and has any 1 + in it."""
    normed = torch.empty_like(x, memory_format=torch.contiguous_format) if out is None else out
    _launch(x, None, weight, eps, 1.0, normed, None)
    return normed


def add_rms_norm(
    x: Tensor,
    stream: Tensor,
    weight: Tensor,
    eps: float,
    factor: float = 1.0,
    *,
    out: tuple[Tensor, Tensor] | None = None,
) -> tuple[Tensor, Tensor]:
    """Return what the stream becomes, normed, and the stream + factor * x, both (T, h).

    The sum is rounded to the stream's dtype first, and the norm is that of what was rounded. The
    second of `out` may be the stream itself.
    """
    shape = torch.contiguous_format
    normed, added = out or (
        torch.empty_like(stream, memory_format=shape),
        torch.empty_like(stream, memory_format=shape),
    )
    _launch(x, stream, weight, eps, factor, normed, added)
    return normed, added


def _launch(
    x: Tensor,
    stream: Tensor | None,
    weight: Tensor,
    eps: float,
    factor: float,
    normed: Tensor,
    added: Tensor | None,
) -> None:
    rows, width = x.shape
    if width > _WIDEST:
        raise ValueError(
            f"a row of a norm may have {_WIDEST} numbers, and here has {width}; use torch's norm"
        )
    each = (x, weight, normed, *(t for t in (stream, added) if t is not None))
    if any(tensor.stride(-1) != 1 for tensor in each):
        raise ValueError("the numbers of a row must lie side by side; call contiguous() first")
    if not rows:
        return
    block = triton.next_power_of_2(width)
    launch(
        _norm,
        (rows,),
        x,
        x if stream is None else stream,
        weight,
        normed,
        normed if added is None else added,
        x.stride(0),
        0 if stream is None else stream.stride(0),
        normed.stride(0),
        0 if added is None else added.stride(0),
        width,
        eps,
        factor,
        ADD=stream is not None,
        BLOCK=block,
        num_warps=min(max(block // 256, 1), 16),
        enable_fp_fusion=True,
    )


@triton.jit
def _norm(
    x_ptr, stream_ptr, weight_ptr, normed_ptr, added_ptr, x_stride, stream_stride, normed_stride,
    added_stride, width, eps, factor,
    ADD: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, BLOCK)
    inside = at < width
    weight = tl.load(weight_ptr + at, mask=inside, other=0.0).to(tl.float32)
    await_earlier(OVERLAPS)
    value = tl.load(x_ptr + row * x_stride + at, mask=inside, other=0.0).to(tl.float32)
    if ADD:
        stream = tl.load(stream_ptr + row * stream_stride + at, mask=inside, other=0.0).to(tl.float32)
        added = (stream + factor * value).to(added_ptr.dtype.element_ty)
        tl.store(added_ptr + row * added_stride + at, added, mask=inside)
        value = added.to(tl.float32)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + eps)
    normed = value * scale * weight
    tl.store(normed_ptr + row * normed_stride + at, normed.to(normed_ptr.dtype.element_ty), mask=inside)
