"""How much of a state stays, and of what is new comes: functions of steps, for kernels of recurrences."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def softplus(x):
    return tl.where(x > 20.0, x, tl.log(1.0 + tl.exp(tl.minimum(x, 20.0))))


@triton.jit
def share_of(step, share, scale, least, most, DELTA: tl.constexpr):  # fmt: skip
    """Return by how much a state decays, before its rate, and the share by which what is new comes."""
    soft = softplus(step)
    if DELTA:
        comes = scale / (1.0 + tl.exp(-share))
    else:
        soft = tl.minimum(tl.maximum(soft, least), most)
        comes = soft
    return soft, comes
