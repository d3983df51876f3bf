"""Kernels that come up while the one before them still computes (programmatic dependent launch).

Between two kernels of a stream a GPU rests for about a microsecond, and the second begins by waiting
for memory: of a small model's step that is a third. A kernel that begins with `await_earlier` lets the next
one come up once all of its own programs run, and waits until all is done and written that was queued
before it. What no kernel writes, weights, may be asked for before that: `fetch_rows`.

Every program of such a kernel must wait, also one that has nothing to do: who waits for a kernel
waits for those before it only through that kernel's own waiting. And what is read before that must have
been written long ago: what the kernel just before has written may not be seen yet.
Source: CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization"; PTX ISA,
"griddepcontrol" and "cp.async.bulk.prefetch".
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait


@triton.jit
def await_earlier(OVERLAPS: tl.constexpr) -> None:
    """Let the next kernel come up, and wait until all is done that was queued before this one."""
    if OVERLAPS:
        gdc_launch_dependents()
        gdc_wait()


@triton.jit
def bytes_asked(numbers: tl.tensor, size: tl.constexpr, BYTES: tl.constexpr) -> tl.tensor:
    """Return how many bytes are asked of a row of which so many numbers of `size` bytes are left."""
    return tl.maximum(tl.minimum(numbers * size, BYTES), 0).to(tl.int32)


@triton.jit
def fetch_rows(
    weights, stride, skipped, rows, numbers,
    ROWS: tl.constexpr, BYTES: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    """Have a program's rows of weights on their way to the second cache: ROWS of `rows` behind the skipped.

    Of each the first `numbers` are asked for, BYTES at most; none where they are no more than 0, as of a part
    that begins behind a row's end. All of these begin and end at multiples of 16 bytes. One thread asks for
    a row.
    """
    if OVERLAPS and BYTES > 0:
        first = tl.program_id(0) * ROWS
        size: tl.constexpr = weights.dtype.element_ty.primitive_bitwidth // 8
        asked = bytes_asked(numbers, size, BYTES)
        count = tl.where(asked > 0, tl.minimum(rows - first, ROWS), 0)
        tl.inline_asm_elementwise(
            """{
                .reg .pred asks;
                .reg .u32 thread;
                .reg .u64 row;
                mov.u32 thread, %tid.x;
                setp.lt.u32 asks, thread, $4;
                mad.wide.u32 row, thread, $2, $1;
                @asks cp.async.bulk.prefetch.L2.global [row], $3;
                mov.u32 $0, 0;
            }""",
            "=r,l,r,r,r",
            [
                (weights + (first.to(tl.int64) + skipped) * stride).to(tl.int64, bitcast=True),
                (stride * size).to(tl.int32),
                asked,
                count.to(tl.int32),
            ],
            dtype=tl.int32,
            is_pure=False,
            pack=1,
        )
