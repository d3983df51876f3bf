"""A mixture's experts, all that a step's tokens are given to, in one call into C."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence

import torch
from torch import Tensor

from inference.kernels.gating import ACTIVATIONS, Gating
from inference.kernels.native import Library, PackedLinear


class GatingStruct(ctypes.Structure):
    """`Gating` of experts.h."""

    _fields_ = (
        ("gates", ctypes.c_int64),
        ("activation", ctypes.c_int64),
        ("factor", ctypes.c_float),
        ("limit", ctypes.c_float),
        ("offset", ctypes.c_float),
    )


class ExpertsStruct(ctypes.Structure):
    """`Experts` of experts.h."""

    _fields_ = (
        ("count", ctypes.c_int64),
        ("hidden", ctypes.c_int64),
        ("inner", ctypes.c_int64),
        ("up", ctypes.c_void_p),
        ("down", ctypes.c_void_p),
        ("gating", GatingStruct),
    )


class _Routing(ctypes.Structure):
    _fields_ = (
        ("rows", ctypes.c_int64),
        ("chosen", ctypes.c_int64),
        ("experts", ctypes.c_void_p),
        ("weights", ctypes.c_void_p),
    )


class ExpertsMemory:
    """What a step's experts are computed in: of all layers the same, grown to the largest step."""

    def __init__(self, library: Library) -> None:
        self.functions = _declare(library.functions)
        self.handle = self.functions.parley_experts_open()
        if not self.handle:
            raise MemoryError("No memory for experts")
        weakref.finalize(self, self.functions.parley_experts_close, self.handle).atexit = False


class PackedExperts:
    """All experts of a layer over packed linears; the same bits for a token whatever is beside it."""

    def __init__(
        self,
        memory: ExpertsMemory,
        up: Sequence[PackedLinear],
        down: Sequence[PackedLinear],
        gating: Gating,
    ) -> None:
        """`up`: hidden -> inner, or with gates 2 * inner, the gates first; `down`: inner -> hidden."""
        first = down[0]
        self.hidden, self.inner = first.n, first.k
        for each, other in zip(up, down, strict=True):
            assert (other.n, other.k) == (self.hidden, self.inner), "experts are of one shape"
            assert (each.n, each.k) == ((1 + gating.gates) * self.inner, self.hidden), "theirs, too"
        self.up, self.down = tuple(up), tuple(down)
        self._held = memory
        self._library, self._functions, self._memory = first.library, memory.functions, memory.handle
        self._pointers = [
            (ctypes.c_void_p * len(linears))(*(ctypes.addressof(each.struct) for each in linears))
            for linears in (up, down)
        ]
        self.struct = ExpertsStruct(
            len(up),
            self.hidden,
            self.inner,
            *(ctypes.addressof(each) for each in self._pointers),
            GatingStruct(
                gating.gates,
                list(ACTIVATIONS).index(gating.activation),
                gating.factor,
                gating.limit,
                gating.offset,
            ),
        )
        self._address = ctypes.addressof(self.struct)

    def __call__(self, x: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        """Return the sum (tokens, hidden) of what each token's experts give of it, times their weights.

        Shapes: x (tokens, hidden), float32; index and weights (tokens, chosen). An index that is no
        expert's stands for none. Raises MemoryError.
        """
        x, weights, index = x.float().contiguous(), weights.float().contiguous(), index.long().contiguous()
        tokens, chosen = index.shape
        assert x.shape == (tokens, self.hidden), "a row for each token"
        assert weights.shape == index.shape, "a weight for each of its experts"
        found = torch.empty_like(x)
        routing = _Routing(tokens, chosen, index.data_ptr(), weights.data_ptr())
        failed = self._functions.parley_experts(
            *(self._library.handle, self._address, ctypes.byref(routing), self._memory),
            *(x.data_ptr(), found.data_ptr()),
        )
        if failed:
            raise MemoryError(f"No memory for the experts of {tokens} tokens")
        return found


def _declare(functions: ctypes.CDLL) -> ctypes.CDLL:
    functions.parley_experts_open.restype = ctypes.c_void_p
    functions.parley_experts_open.argtypes = ()
    functions.parley_experts_close.restype = None
    functions.parley_experts_close.argtypes = (ctypes.c_void_p,)
    functions.parley_experts.restype = ctypes.c_int
    functions.parley_experts.argtypes = (ctypes.c_void_p,) * 6
    return functions
