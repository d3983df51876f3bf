"""Products of each head's numbers with a linear of its own, all heads in one call into C."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from inference.kernels.native import PackedLinear, aligned


class PackedHeads:
    """Packed linears of one shape, one for each head; the same bits for a row whatever is beside it."""

    def __init__(self, linears: Sequence[PackedLinear]) -> None:
        first = linears[0]
        self.n, self.k = first.n, first.k
        assert all((each.n, each.k) == (self.n, self.k) for each in linears), "heads are of one shape"
        self.linears = tuple(linears)
        self._library = first.library
        self._functions = _declare(first.library.functions)
        self._pointers = (ctypes.c_void_p * len(linears))(
            *(ctypes.addressof(each.struct) for each in linears)
        )

    @property
    def address(self) -> int:
        """Return where C finds them, one after the other."""
        return ctypes.addressof(self._pointers)

    @property
    def nbytes(self) -> int:
        """Return the memory that they hold."""
        return sum(each.nbytes for each in self.linears)

    def multiply(self, x: Tensor, y: Tensor) -> None:
        """Write each head's products into y (rows, heads, n), of x (rows, heads, k), both float32."""
        rows, heads = x.shape[:2]
        assert x.shape == (rows, len(self.linears), self.k), "a head's numbers for each linear"
        assert y.shape == (rows, heads, self.n), "and its products"
        assert x.stride(2) == y.stride(2) == 1, "C reads one after the other"
        assert x.dtype == y.dtype == torch.float32, "C computes in float32"
        handle = self._library.handle
        size = self._functions.parley_heads_scratch(handle, self._pointers, heads, rows)
        scratch = aligned(size) if size else None
        self._functions.parley_heads(
            *(handle, self._pointers, heads, rows),
            *(x.data_ptr(), x.stride(0), x.stride(1)),
            *(y.data_ptr(), y.stride(0), y.stride(1)),
            None if scratch is None else scratch.data_ptr(),
        )


def _declare(functions: ctypes.CDLL) -> ctypes.CDLL:
    pointer, integer = ctypes.c_void_p, ctypes.c_int64
    functions.parley_heads_scratch.restype = integer
    functions.parley_heads_scratch.argtypes = (pointer, pointer, integer, integer)
    functions.parley_heads.restype = None
    functions.parley_heads.argtypes = (
        *(pointer, pointer, integer, integer),
        *(pointer, integer, integer),
        *(pointer, integer, integer),
        pointer,
    )
    return functions
