"""How much of an array's memory the system has found, and how much of that is its own."""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from typing import Protocol

import numpy as np

TELLS = sys.platform == "linux"
_OWN = np.uint64(1 << 63 | 1 << 56)  # a page that is present, and mapped once


class Placed(Protocol):
    """An array of torch's."""

    @property
    def nbytes(self) -> int:
        """Return its size."""

    def data_ptr(self) -> int:
        """Return where it begins."""


def resident(array: Placed) -> int:
    """Return how many bytes of the pages of an array are in memory."""
    page = mmap.PAGESIZE
    first, last = array.data_ptr() // page * page, -(-(array.data_ptr() + array.nbytes) // page) * page
    present = (ctypes.c_ubyte * ((last - first) // page))()
    assert ctypes.CDLL(None).mincore(ctypes.c_void_p(first), ctypes.c_size_t(last - first), present) == 0
    return page * sum(each & 1 for each in present)


def owned(array: Placed) -> int:
    """Return how many bytes of the pages of an array are memory of this process alone.

    Pages that were only read are present, too: all of them the one of zeros, which is nobody's memory.
    Maps that lie behind each other may be one to the system, so the pages are asked.
    """
    page = mmap.PAGESIZE
    first, last = array.data_ptr() // page, -(-(array.data_ptr() + array.nbytes) // page)
    with open("/proc/self/pagemap", "rb", buffering=0) as pages:
        told = os.pread(pages.fileno(), 8 * (last - first), 8 * first)
    entries = np.frombuffer(told, np.uint64)
    assert len(entries) == last - first
    return page * int(((entries & _OWN) == _OWN).sum())
