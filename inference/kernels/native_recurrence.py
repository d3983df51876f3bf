"""Recurrences of layers that keep a state, by the C extension: the gated delta rule, Mamba, Mamba 2."""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from inference.kernels.native import Library, PackedLinear, narrowest
from inference.kernels.native_state import Convolution, NativeRuns, rows_of, untouched
from inference.kernels.state_parts import Heads, plain

MOST_KEYS = 256  # numbers of a key, as in state.h
_BLOCK = 32  # numbers of a value that are computed side by side, as there
_SUMS = 4  # a key's numbers are a multiple


class RecurrenceStruct(ctypes.Structure):
    """`RecurrenceCall` of state.h."""

    _fields_ = (
        ("runs", ctypes.c_void_p),
        ("key_heads", ctypes.c_int64),
        ("value_heads", ctypes.c_int64),
        ("key_dim", ctypes.c_int64),
        ("value_dim", ctypes.c_int64),
        ("queries", ctypes.c_void_p),
        ("keys", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("steps", ctypes.c_void_p),
        ("steps_stride", ctypes.c_int64),
        ("shares", ctypes.c_void_p),
        ("shares_stride", ctypes.c_int64),
        ("gates", ctypes.c_void_p),
        ("gates_stride", ctypes.c_int64),
        ("rates", ctypes.c_void_p),
        ("step_biases", ctypes.c_void_p),
        ("norm", ctypes.c_void_p),
        ("skips", ctypes.c_void_p),
        ("eps", ctypes.c_float),
        ("scale", ctypes.c_float),
        ("least", ctypes.c_float),
        ("most", ctypes.c_float),
        ("states", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
    )


class ScanStruct(ctypes.Structure):
    """`ScanCall` of state.h."""

    _fields_ = (
        ("runs", ctypes.c_void_p),
        ("channels", ctypes.c_int64),
        ("keys", ctypes.c_int64),
        ("x", ctypes.c_void_p),
        ("steps", ctypes.c_void_p),
        ("steps_stride", ctypes.c_int64),
        ("into", ctypes.c_void_p),
        ("by", ctypes.c_void_p),
        ("into_stride", ctypes.c_int64),
        ("by_stride", ctypes.c_int64),
        ("gates", ctypes.c_void_p),
        ("gates_stride", ctypes.c_int64),
        ("rates", ctypes.c_void_p),
        ("step_biases", ctypes.c_void_p),
        ("skips", ctypes.c_void_p),
        ("states", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
    )


class Recurrence:
    """What the two recurrences have in common."""

    def __init__(self, library: Library, heads: Heads, rates: Tensor, step_biases: Tensor) -> None:
        self.heads = heads
        self._library = library
        self._rates, self._step_biases = plain(rates), plain(step_biases)

    def states(self, places: int) -> Tensor:
        """Return so many places for states, which take memory as they are written to."""
        heads = self.heads
        return untouched(places, heads.values, -(-heads.value_dim // _BLOCK), heads.key_dim, _BLOCK)

    def struct(self) -> RecurrenceStruct:
        """Return what C is told of each step, which lacks the step; it points to what this keeps."""
        heads = self.heads
        return RecurrenceStruct(
            key_heads=heads.keys,
            value_heads=heads.values,
            key_dim=heads.key_dim,
            value_dim=heads.value_dim,
            rates=self._rates.data_ptr(),
            step_biases=self._step_biases.data_ptr(),
        )

    def _run(
        self,
        rows: tuple[Tensor, Tensor, Tensor],
        steps: Tensor,
        states: Tensor,
        runs: NativeRuns,
        **more: Any,
    ) -> Tensor:
        """`rows`: queries, keys and values, views of one tensor (tokens, channels)."""
        heads = self.heads
        out = torch.empty(len(steps), heads.values * heads.value_dim)
        call = self.struct()
        call.runs, call.stride = runs.address, rows[0].stride(0)
        call.queries, call.keys, call.values = (each.data_ptr() for each in rows)
        call.steps, call.steps_stride = steps.data_ptr(), steps.stride(0)
        call.states, call.out = states.data_ptr(), out.data_ptr()
        for name, value in more.items():
            setattr(call, name, value)
        self._library.functions.parley_recur(self._library.handle, ctypes.addressof(call))
        return out


class DeltaRule(Recurrence):
    """Linear attention by the gated delta rule, its results normalised and gated."""

    def __init__(
        self,
        library: Library,
        heads: Heads,
        *,
        rates: Tensor,
        step_biases: Tensor,
        norm: Tensor,
        eps: float,
        scale: float,
    ) -> None:
        """Take what `StateKernels.delta_rule` is given."""
        super().__init__(library, heads, rates, step_biases)
        self._norm, self._eps, self._scale = plain(norm), eps, scale

    def __call__(
        self, x: Tensor, gates: Tensor, shares: Tensor, steps: Tensor, states: Tensor, runs: NativeRuns
    ) -> Tensor:
        """Return (tokens, value heads * value_dim) of a step's rows, all in float32."""
        keys = self.heads.keys * self.heads.key_dim
        gates, shares, steps = (rows_of(each) for each in (gates, shares, steps))
        return self._run(
            (x, x[:, keys:], x[:, 2 * keys :]),
            steps,
            states,
            runs,
            shares=shares.data_ptr(),
            shares_stride=shares.stride(0),
            gates=gates.data_ptr(),
            gates_stride=gates.stride(0),
        )

    def struct(self) -> RecurrenceStruct:
        """Return what C is told of each step."""
        found = super().struct()
        found.norm, found.eps, found.scale = self._norm.data_ptr(), self._eps, self._scale
        return found


class Mamba2Scan(Recurrence):
    """Mamba 2's recurrence."""

    def __init__(
        self,
        library: Library,
        heads: Heads,
        *,
        rates: Tensor,
        step_biases: Tensor,
        skips: Tensor,
        limits: tuple[float, float],
    ) -> None:
        """Take what `StateKernels.mamba2` is given."""
        super().__init__(library, heads, rates, step_biases)
        self._skips, self._limits = plain(skips), limits

    def __call__(self, x: Tensor, steps: Tensor, states: Tensor, runs: NativeRuns) -> Tensor:
        """Return (tokens, value heads * value_dim) of a step's rows, all in float32."""
        heads = self.heads
        values, keys = heads.values * heads.value_dim, heads.keys * heads.key_dim
        return self._run((x[:, values + keys :], x[:, values:], x), rows_of(steps), states, runs)

    def struct(self) -> RecurrenceStruct:
        """Return what C is told of each step."""
        found = super().struct()
        found.skips, (found.least, found.most) = self._skips.data_ptr(), self._limits
        return found


class MambaScan:
    """Mamba's recurrence, its results gated."""

    def __init__(self, library: Library, *, rates: Tensor, step_biases: Tensor, skips: Tensor) -> None:
        """Take what `StateKernels.mamba` is given."""
        self._library = library
        self._rates = plain(rates.T)
        self._step_biases, self._skips = plain(step_biases), plain(skips)
        self.keys, self.channels = self._rates.shape

    def states(self, places: int) -> Tensor:
        """Return so many places for states, which take memory as they are written to."""
        return untouched(places, self.keys, self.channels)

    def __call__(
        self,
        x: Tensor,
        steps: Tensor,
        projected: tuple[Tensor, Tensor],
        gates: Tensor,
        states: Tensor,
        runs: NativeRuns,
    ) -> Tensor:
        """Return (tokens, channels) of a step's rows, all in float32."""
        x, out = x.contiguous(), torch.empty(x.shape)
        steps, gates, into, by = (rows_of(each) for each in (steps, gates, *projected))
        call = self.struct()
        call.runs, call.x = runs.address, x.data_ptr()
        call.steps, call.steps_stride = steps.data_ptr(), steps.stride(0)
        call.into, call.into_stride = into.data_ptr(), into.stride(0)
        call.by, call.by_stride = by.data_ptr(), by.stride(0)
        call.gates, call.gates_stride = gates.data_ptr(), gates.stride(0)
        call.states, call.out = states.data_ptr(), out.data_ptr()
        self._library.functions.parley_scan(self._library.handle, ctypes.addressof(call))
        return out

    def struct(self) -> ScanStruct:
        """Return what C is told of each step, which lacks the step; it points to what this keeps."""
        return ScanStruct(
            channels=self.channels,
            keys=self.keys,
            rates=self._rates.data_ptr(),
            step_biases=self._step_biases.data_ptr(),
            skips=self._skips.data_ptr(),
        )


class NativeStates:
    """What the C extension computes of layers that keep a state: `StateKernels`."""

    def __init__(self, library: Library) -> None:
        self._library = library

    def computes(self, heads: Heads) -> bool:
        """Return whether C computes a recurrence of such heads."""
        fits = heads.key_dim % _SUMS == 0 and 0 < heads.key_dim <= MOST_KEYS
        return fits and heads.values % heads.keys == 0

    def convolution(self, kernel: Tensor, bias: Tensor | None, *, silu: bool) -> Convolution:
        """Return a short convolution."""
        return Convolution(self._library, kernel, bias, silu=silu)

    def delta_rule(
        self, heads: Heads, *, rates: Tensor, step_biases: Tensor, norm: Tensor, eps: float, scale: float
    ) -> DeltaRule:
        """Return a gated delta rule."""
        given = {"rates": rates, "step_biases": step_biases, "norm": norm}
        return DeltaRule(self._library, heads, **given, eps=eps, scale=scale)

    def mamba2(
        self,
        heads: Heads,
        *,
        rates: Tensor,
        step_biases: Tensor,
        skips: Tensor,
        limits: tuple[float, float],
    ) -> Mamba2Scan:
        """Return Mamba 2's recurrence."""
        given = {"rates": rates, "step_biases": step_biases, "skips": skips}
        return Mamba2Scan(self._library, heads, **given, limits=limits)

    def mamba(self, *, rates: Tensor, step_biases: Tensor, skips: Tensor) -> MambaScan:
        """Return Mamba's recurrence."""
        return MambaScan(self._library, rates=rates, step_biases=step_biases, skips=skips)

    def linear(self, weight: Tensor) -> PackedLinear:
        """Return a packed linear."""
        return PackedLinear.pack(self._library, weight, None, narrowest(weight))
