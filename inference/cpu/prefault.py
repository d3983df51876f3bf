"""Memory for the KV cache's next blocks, found by the system while nothing is computed."""

from __future__ import annotations

import ctypes
import mmap
import sys
from collections import deque
from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor

from inference.kernels.arena import HUGE_PAGE
from inference.kv_cache.blocks import PAGE

FIRST_TOKENS = 2048  # that have memory before the first request,
FIRST_BYTES = 64 << 20  # in so many bytes at most, but for a huge page of each array
AHEAD_TOKENS = 16384  # that are to have memory beyond those that were ever in use,
AHEAD_BYTES = 512 << 20  # likewise
_POPULATE_WRITE = (
    23  # of madvise, since Linux 5.14: writing to each page would be the same, but for its contents
)


class Prefault:
    """Has the system find memory for a cache's arrays before it is needed.

    Memory that is written for the first time has to be found and cleared by the system: 0.2 ms for a huge
    page, and 5 to 7 ms where the machine is virtual and its host takes back what isn't used, as measured on
    Zen 5. One of a step's threads does that while the others wait for it.
    """

    def __init__(self, arrays: Iterable[Tensor]) -> None:
        """Fault in memory for the first tokens; of each array the first dimension is the cache's blocks."""
        self._arrays = deque(_Array(array) for array in arrays if len(array))
        size = sum(array.block_bytes for array in self._arrays)
        self._ahead = _blocks(AHEAD_TOKENS, AHEAD_BYTES, size)
        first = _blocks(FIRST_TOKENS, FIRST_BYTES, size)
        while self._fault(0, first):
            pass

    def advance(self, high_water: int) -> bool:
        """Fault in a huge page at most, in milliseconds; return false if there is enough memory ahead.

        `high_water`: blocks before this one have been in use, and have memory; what others hold may be lost.
        """
        return self._fault(high_water, high_water + self._ahead)

    def _fault(self, first: int, end: int) -> bool:
        for _ in range(len(self._arrays)):
            self._arrays.rotate(-1)  # all arrays get on alike
            if self._arrays[-1].fault(first, end):
                return True
        return False


class _Array:
    """One array, and how much of it has memory."""

    def __init__(self, array: Tensor) -> None:
        assert array.is_contiguous(), "its blocks lie behind each other"
        self.block_bytes = array[0].nbytes
        self._bytes = array.view(torch.uint8).flatten()
        self._phase = array.data_ptr() % HUGE_PAGE
        self._faulted = 0  # bytes

    def fault(self, first: int, end: int) -> bool:
        """Fault in one huge page for the blocks from `first` to `end`; return false if they have theirs."""
        start = max(self._faulted, first * self.block_bytes)
        wanted = min(end * self.block_bytes, len(self._bytes))
        if start >= wanted:
            return False
        stop = min(wanted, start + HUGE_PAGE - (self._phase + start) % HUGE_PAGE)
        if not _populate(self._bytes.data_ptr() + start, stop - start):
            self._bytes[start:stop].zero_()
        self._faulted = stop
        return True


def _populate(address: int, size: int) -> bool:
    """Have the system find memory for a range, leaving what it holds; return false where it can't."""
    first = address // mmap.PAGESIZE * mmap.PAGESIZE
    return _MADVISE is not None and not _MADVISE(first, address + size - first, _POPULATE_WRITE)


def _madvise() -> Callable[[int, int, int], int] | None:
    if sys.platform != "linux":
        return None
    function = ctypes.CDLL(None).madvise
    function.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    return cast(Callable[[int, int, int], int], function)


_MADVISE = _madvise()


def _blocks(tokens: int, most: int, size: int) -> int:
    """Return how many blocks of `size` bytes hold so many tokens, in no more than `most` bytes."""
    return min(tokens // PAGE, most // max(size, 1))
