"""Whether kernels are compiled, or interpreted on a machine without a GPU (TRITON_INTERPRET=1)."""

from __future__ import annotations

import triton


def interpreted() -> bool:
    """Return whether numpy computes the kernels.

    The interpreter keeps bfloat16 as its bits in uint16, and tl.dot multiplies those (Triton 3.9):
    kernels widen such operands to float32 there. Their products and sums are exact in either.
    """
    return bool(triton.knobs.runtime.interpret)
