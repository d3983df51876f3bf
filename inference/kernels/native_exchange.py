"""What several processes of one machine tell each other, by memory that they share."""

from __future__ import annotations

import ctypes
import mmap
import weakref
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from inference.kernels.native import Library, address

PART_BYTES = 4 << 20  # that one process leaves at once
Bytes = NDArray[np.uint8]


@dataclass(frozen=True, slots=True)
class AddUp:
    """A function of C that adds numbers up over all processes, and what it is called with."""

    function: ctypes.c_void_p
    context: ctypes.c_void_p
    owner: object  # of the context


class NativeExchange:
    """One process's place at an exchange; one thread takes turns, and all processes take the same."""

    def __init__(
        self, library: Library, memory: mmap.mmap, rank: int, count: int, size: int = PART_BYTES
    ) -> None:
        """`memory`: as many bytes as `exchange_bytes` says, zeros at first; `size`: of a part, in bytes."""
        functions = _declare(library.functions)
        assert len(memory) >= exchange_bytes(library, count, size), "there is room for all"
        self.size = size
        self._count = count
        self._functions = functions
        self._memory = np.frombuffer(memory, dtype=np.uint8)
        handle = functions.parley_exchange_open(address(self._memory), rank, count, size)
        if not handle:
            raise MemoryError("No memory for an exchange")
        self._handle = ctypes.c_void_p(handle)
        weakref.finalize(self, functions.parley_exchange_close, self._handle).atexit = False

    @property
    def add_up(self) -> AddUp:
        """Return what adds numbers up."""
        function = ctypes.cast(self._functions.parley_exchange_add, ctypes.c_void_p)
        return AddUp(function, self._handle, self)

    def turn(self, own: Bytes) -> list[Bytes]:
        """Leave bytes, no more than a part has, and return what each process has left, until the next turn.

        Of a part only what its process has left means something. Raises EOFError if one is gone.
        """
        assert own.nbytes <= self.size, "it fits in a part"
        assert own.flags.c_contiguous, "C reads one after the other"
        first = self._functions.parley_exchange_turn(self._handle, address(own), own.nbytes)
        if not first:
            raise EOFError("a process has left the exchange")
        start = int(first) - address(self._memory)
        return [self._memory[start + rank * self.size :][: self.size] for rank in range(self._count)]

    def leave(self) -> None:
        """Tell all that wait, now and later, that they wait in vain; from any thread."""
        self._functions.parley_exchange_leave(self._handle)


def exchange_bytes(library: Library, count: int, size: int = PART_BYTES) -> int:
    """Return how many bytes of memory an exchange takes."""
    found: int = _declare(library.functions).parley_exchange_bytes(count, size)
    return found


def _declare(functions: ctypes.CDLL) -> ctypes.CDLL:
    functions.parley_exchange_bytes.restype = ctypes.c_int64
    functions.parley_exchange_bytes.argtypes = (ctypes.c_int32, ctypes.c_int64)
    functions.parley_exchange_open.restype = ctypes.c_void_p
    functions.parley_exchange_open.argtypes = (
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_int64,
    )
    functions.parley_exchange_close.restype = None
    functions.parley_exchange_close.argtypes = (ctypes.c_void_p,)
    functions.parley_exchange_leave.restype = None
    functions.parley_exchange_leave.argtypes = (ctypes.c_void_p,)
    functions.parley_exchange_turn.restype = ctypes.c_void_p
    functions.parley_exchange_turn.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    return functions
