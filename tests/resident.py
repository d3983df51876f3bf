"""How much of an array's memory the system has found, and how much of that is its own."""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from collections.abc import Iterator
from pathlib import Path
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


def owned(array: Placed) -> int:
    """Return how much memory the maps have that hold an array.

    Pages that were only read are present, too: all of them the one of zeros, which is nobody's memory.
    What the whole process has says nothing of an array: other memory comes and goes.
    """
    first, end = array.data_ptr(), array.data_ptr() + array.nbytes
    return sum(size for start, stop, size in _maps() if start < end and first < stop)


def _maps() -> Iterator[tuple[int, int, int]]:
    """Yield where each of this process's maps begins and ends, and how many bytes of memory it has."""
    where = (0, 0)
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if found := re.match(r"([0-9a-f]+)-([0-9a-f]+) ", line):
            where = int(found[1], 16), int(found[2], 16)
        elif line.startswith("Rss:"):
            yield *where, int(line.split()[1]) << 10
