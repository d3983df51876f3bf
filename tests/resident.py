"""How much of an array's memory the system has found."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Protocol

TELLS = sys.platform == "linux"


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
