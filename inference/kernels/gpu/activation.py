"""The gate of an MLP: activation(gate) * up, of what the merged linear gave, in one pass.

It is computed in float32 and rounded once.
"""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from inference.kernels.gating import Gating
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier

_BLOCK = 1024
ACTIVATIONS = {"silu": 0, "gelu_tanh": 1, "gelu": 2}


def gated(gate_up: Tensor, activation: str, *, out: Tensor | None = None) -> Tensor:
    """Return activation(gate) * up, (T, I), of gate_up (T, 2 * I).

    Raises KeyError for an activation other than "silu", "gelu_tanh" and "gelu".
    """
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    result = gate_up.new_empty(rows, inner) if out is None else out
    if gate_up.stride(1) != 1 or result.stride(1) != 1:
        raise ValueError("the numbers of a row must lie side by side; call contiguous() first")
    if rows:
        grid = (rows, triton.cdiv(inner, _BLOCK))
        launch(
            _gate,
            grid,
            gate_up,
            result,
            gate_up.stride(0),
            result.stride(0),
            inner,
            ACTIVATION=ACTIVATIONS[activation],
            BLOCK=_BLOCK,
            num_warps=4,
            enable_fp_fusion=True,
        )
    return result


def gated_by(gate_up: Tensor, gate: Gating) -> Tensor:
    """Return (T, I) of gate_up (T, 2 * I), by a gate that may have limits and another order."""
    rows, inner = gate_up.shape[0], gate_up.shape[1] // 2
    result = gate_up.new_empty(rows, inner)
    if gate_up.stride(1) != 1:
        raise ValueError("the numbers of a row must lie side by side; call contiguous() first")
    if rows:
        launch(
            _gate_within, (rows, triton.cdiv(inner, _BLOCK)),
            gate_up, result, gate_up.stride(0), inner, gate.limit, gate.factor, gate.offset,
            ACTIVATION=ACTIVATIONS[gate.activation], INTERLEAVED=gate.alternating, SLOPED=gate.factor != 1.0,
            BLOCK=_BLOCK, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return result


@triton.jit
def _sigmoid(x: tl.tensor) -> tl.tensor:
    small = tl.exp(-tl.abs(x))  # overflows for no x
    return tl.where(x >= 0, 1.0, small) / (1.0 + small)


@triton.jit
def activate(x: tl.tensor, ACTIVATION: tl.constexpr) -> tl.tensor:
    """Return the activation of float32 numbers: silu, gelu by its tanh approximation, or gelu."""
    if ACTIVATION == 0:
        y = x * _sigmoid(x)
    elif ACTIVATION == 1:
        # (1 + tanh(a)) / 2 = sigmoid(2 * a), a = sqrt(2 / pi) * (x + 0.044715 * x ** 3)
        y = x * _sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    else:
        y = 0.5 * x * (1.0 + tl.erf(x * 0.7071067811865476))
    return y


@triton.jit
def _gate(
    gate_up_ptr, out_ptr, gate_up_stride, out_stride, inner,
    ACTIVATION: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < inner
    gate = tl.load(gate_up_ptr + row * gate_up_stride + at, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * gate_up_stride + inner + at, mask=inside, other=0.0).to(tl.float32)
    gated = (activate(gate, ACTIVATION) * up).to(out_ptr.dtype.element_ty)
    tl.store(out_ptr + row * out_stride + at, gated, mask=inside)


@triton.jit
def gate_within(gate, up, limit, slope, shift, ACTIVATION: tl.constexpr, SLOPED: tl.constexpr) -> tl.tensor:
    """Return the activation of float32 gates, times float32 numbers and a shift, both within a limit."""
    gate = tl.minimum(gate, limit, propagate_nan=tl.PropagateNan.ALL)
    up = tl.maximum(up, -limit, propagate_nan=tl.PropagateNan.ALL)
    up = tl.minimum(up, limit, propagate_nan=tl.PropagateNan.ALL)
    activated = activate(gate, ACTIVATION)
    if SLOPED:
        activated = gate * _sigmoid(slope * gate)
    return activated * (up + shift)


@triton.jit
def _gate_within(
    gate_up_ptr, out_ptr, gate_up_stride, inner, limit, slope, shift,
    ACTIVATION: tl.constexpr, INTERLEAVED: tl.constexpr, SLOPED: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    await_earlier(OVERLAPS)
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = at < inner
    first, second = at, inner + at
    if INTERLEAVED:
        first, second = 2 * at, 2 * at + 1
    gate = tl.load(gate_up_ptr + row * gate_up_stride + first, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(gate_up_ptr + row * gate_up_stride + second, mask=inside, other=0.0).to(tl.float32)
    y = gate_within(gate, up, limit, slope, shift, ACTIVATION, SLOPED)
    tl.store(out_ptr + row * inner + at, y.to(out_ptr.dtype.element_ty), mask=inside)
