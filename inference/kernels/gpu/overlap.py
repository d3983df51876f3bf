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
    pointer: tl.tensor, stride: tl.tensor, count: tl.tensor, numbers: tl.tensor, BYTES: tl.constexpr
) -> None:
    """Have rows on their way to the second cache: of each of `count` the first `numbers`, BYTES at most.

    Rows and what is asked of each begin and end at multiples of 16 bytes; one thread asks for a row. Where
    there are no numbers, or fewer, as behind the end of rows, nothing is asked.
    """
    size: tl.constexpr = pointer.dtype.element_ty.primitive_bitwidth // 8
    asked = bytes_asked(numbers, size, BYTES)
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
            pointer.to(tl.int64, bitcast=True),
            (stride * size).to(tl.int32),
            asked,
            tl.where(asked > 0, count, 0).to(tl.int32),
        ],
        dtype=tl.int32,
        is_pure=False,
        pack=1,
    )
