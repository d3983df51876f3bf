"""Layers of a stack that keep a state in place of keys and values."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable
from dataclasses import dataclass

from torch import Tensor

from inference.kernels.native import PackedLinear
from inference.kernels.native_recurrence import Recurrence, RecurrenceStruct
from inference.kernels.native_selection import NativeSelection, Selection
from inference.kernels.native_state import Convolution, ConvolutionStruct
from inference.kernels.state_parts import plain

_NONE = -1  # a part that a layer hasn't


@dataclass(frozen=True, slots=True, kw_only=True)
class StateLayout:
    """Where the parts of a row begin: of what the first linear gives, and of what is convolved."""

    width: int  # of such a row
    mixed: int  # what is convolved
    before: int = _NONE  # what that is multiplied with
    behind: int = _NONE  # what is multiplied with what comes of it
    queries: int = 0  # of the convolved
    keys: int = 0
    values: int = 0
    steps: int = 0
    shares: int = _NONE
    gates: int = _NONE


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StateWeights:
    """What is between the two linears of a layer that keeps a state.

    A recurrence without shares is gated and normalised by what `norm` (outputs,) says, `norm_size` numbers
    together; None: only gated.
    """

    layout: StateLayout
    convolution: Convolution
    recurrence: Recurrence | None = None  # None: the convolution is all, but for a selection
    selection: Selection | None = None  # Mamba's
    norm: Tensor | None = None
    norm_size: int = 0
    norm_eps: float = 0.0

    @property
    def outputs(self) -> int:
        """Return how many numbers the second linear reads of a row."""
        if self.recurrence is None:
            return self.convolution.channels
        return self.recurrence.heads.values * self.recurrence.heads.value_dim

    def check(self) -> None:
        """Assert that the parts are within a row: C would read past its end."""
        at, channels = self.layout, self.convolution.channels
        heads = 0 if self.recurrence is None else self.recurrence.heads.values
        sizes = ((at.mixed, channels), (at.before, channels), (at.behind, channels), (at.steps, heads))
        gates = ((at.shares, heads), (at.gates, self.outputs))
        assert all(first + size <= at.width for first, size in (*sizes, *gates) if first != _NONE)
        if self.recurrence is not None:
            assert channels == self.recurrence.heads.channels, "queries, keys and values are convolved"
            assert at.gates != _NONE, "what comes of it is gated"
        if self.selection is not None:
            assert self.recurrence is None, "one or the other"
            assert at.gates != _NONE, "what comes of it is gated"
            self.selection.check(channels)
        if self.norm is not None:
            assert self.norm.shape == (self.outputs,), "a weight for each number"
            assert self.norm_size > 0 and self.outputs % self.norm_size == 0, "whole groups"  # noqa: PT018


class StateMixerStruct(ctypes.Structure):
    """`StateMixer` of state_layer.h."""

    _fields_ = (
        ("convolution", ConvolutionStruct),
        ("recurrence", RecurrenceStruct),
        *((name, ctypes.c_int64) for name in ("recurs", "mixed", "before", "behind")),
        *((name, ctypes.c_int64) for name in ("queries", "keys", "values", "steps", "shares", "gates")),
        ("norm", ctypes.c_void_p),
        ("norm_size", ctypes.c_int64),
        ("norm_eps", ctypes.c_float),
        ("selection", ctypes.c_void_p),
    )


class NativeStateLayer:
    """A layer's states, and what C is told of it."""

    def __init__(self, weights: StateWeights) -> None:
        weights.check()
        self.weights = weights
        self.places: Iterable[Tensor] = ()
        self._selection = None if weights.selection is None else NativeSelection(weights.selection)
        self._norm = None if weights.norm is None else plain(weights.norm)
        self.struct = self._struct()

    def allocate(self, places: int) -> None:
        """Have so many places, which take memory as they are written to."""
        weights = self.weights
        recent = weights.convolution.states(places)
        self.struct.convolution.recent = recent.data_ptr()
        self.places = (recent,)
        if weights.recurrence is not None:
            states = weights.recurrence.states(places)
            self.struct.recurrence.states = states.data_ptr()
            self.places = recent, states
        if self._selection is not None:
            states = self._selection.scan.states(places)
            self._selection.struct.scan.states = states.data_ptr()
            self.places = recent, states

    def check(self, into: PackedLinear, out: PackedLinear) -> None:
        """Assert that linears are those around it: C would read past their ends."""
        assert (into.n, out.k) == (self.weights.layout.width, self.weights.outputs), "what is between them"

    def _struct(self) -> StateMixerStruct:
        weights, at = self.weights, self.weights.layout
        recurrence = weights.recurrence
        return StateMixerStruct(
            weights.convolution.struct(),
            RecurrenceStruct() if recurrence is None else recurrence.struct(),
            recurrence is not None,
            *(at.mixed, at.before, at.behind, at.queries, at.keys, at.values, at.steps, at.shares, at.gates),
            None if self._norm is None else self._norm.data_ptr(),
            weights.norm_size,
            weights.norm_eps,
            None if self._selection is None else ctypes.addressof(self._selection.struct),
        )
