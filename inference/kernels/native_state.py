"""Layers that keep a state of each sequence, by the C extension: their steps, and short convolutions."""

from __future__ import annotations

import ctypes

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from inference.kernels.native import Library, address
from inference.kernels.state_parts import plain

Integers = NDArray[np.int64]


class _RunsStruct(ctypes.Structure):
    """`Runs` of state.h."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("ends", ctypes.c_void_p),
        ("reads", ctypes.c_void_p),
        ("writes", ctypes.c_void_p),
    )


class ConvolutionStruct(ctypes.Structure):
    """`ConvolutionCall` of state.h."""

    _fields_ = (
        ("runs", ctypes.c_void_p),
        ("x", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("channels", ctypes.c_int64),
        ("taps", ctypes.c_int64),
        ("kernel", ctypes.c_void_p),
        ("bias", ctypes.c_void_p),
        ("silu", ctypes.c_int64),
        ("before", ctypes.c_void_p),
        ("behind", ctypes.c_void_p),
        ("recent", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
    )


class NativeRuns:
    """A step's pieces as C takes them: where each ends, and the places of its states, (pieces,) each.

    A read of -1: nothing was read of the sequence before.
    """

    def __init__(self, ends: Integers, reads: Integers, writes: Integers) -> None:
        self._kept = (ends, reads, writes)
        self._struct = _RunsStruct(len(ends), *map(address, self._kept))
        self.address = ctypes.addressof(self._struct)


class Convolution:
    """A causal convolution of each channel by itself, with what each sequence's last inputs were."""

    def __init__(self, library: Library, kernel: Tensor, bias: Tensor | None, *, silu: bool) -> None:
        """`kernel` (channels, taps), the oldest input's first; `bias` (channels)."""
        self._library = library
        self._kernel = plain(kernel.T)
        self._bias = None if bias is None else plain(bias)
        self.taps, self.channels = self._kernel.shape
        self._silu = silu

    def states(self, places: int) -> Tensor:
        """Return so many places for states, which take memory as they are written to."""
        return untouched(places, self.taps - 1, self.channels)

    def __call__(self, x: Tensor, states: Tensor, runs: NativeRuns) -> Tensor:
        """Return (tokens, channels) of a step's (tokens, channels), float32, whose rows may lie apart."""
        rows = rows_of(x)
        out = torch.empty(rows.shape)
        call = self.struct()
        call.runs, call.x, call.stride = runs.address, rows.data_ptr(), rows.stride(0)
        call.recent, call.out = states.data_ptr(), out.data_ptr()
        self._library.functions.parley_convolve(self._library.handle, ctypes.addressof(call))
        return out

    def struct(self) -> ConvolutionStruct:
        """Return what C is told of each step, which lacks the step; it points to what this keeps."""
        return ConvolutionStruct(
            channels=self.channels,
            taps=self.taps,
            kernel=self._kernel.data_ptr(),
            bias=None if self._bias is None else self._bias.data_ptr(),
            silu=self._silu,
        )


def untouched(*shape: int) -> Tensor:
    """Return zeros in float32, which take memory as they are written to."""
    return torch.from_numpy(np.zeros(shape, dtype=np.float32))  # torch's own are written at once


def rows_of(x: Tensor) -> Tensor:
    """Return rows whose numbers follow each other."""
    if x.dtype != torch.float32:
        raise TypeError(f"inputs must be float32, not {x.dtype}")
    return x if x.stride(1) == 1 else x.contiguous()
