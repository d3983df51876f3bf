"""Memory for weights and caches: large maps that the system may back with huge pages."""

from __future__ import annotations

import contextlib
import mmap

import torch
from torch import Tensor

LINE = 64  # bytes: pieces begin at cache lines
HUGE_PAGE = 2 << 20
LARGE = 16 << 20  # bytes: from here on huge pages pay
_MAP_BYTES = 64 << 20  # pages that no piece touches take no memory


class Arena:
    """Gives pieces of memory; a map is given back when the last of its pieces is gone.

    Weights are read from end to end at each step. With pages of 4 KiB the processor looks up an
    address every 64 lines and its prefetching stops there: reading was 6 to 12 % slower (Zen 4).
    """

    def __init__(self) -> None:
        self._left = torch.empty(0, dtype=torch.uint8)

    def take(self, size: int) -> Tensor:
        """Return (size) uint8, zeros at first."""
        whole = -(-size // LINE) * LINE
        if whole > self._left.numel():
            self._left = map_zeros(max(whole, _MAP_BYTES))
        piece, self._left = self._left[:size], self._left[whole:]
        return piece


def map_zeros(size: int) -> Tensor:
    """Return (size) uint8, a map of its own whose pages take memory when they are written.

    From LARGE bytes on it begins at a huge page's address and asks for huge pages. Smaller ones would
    take 2 MiB for whatever they hold.
    """
    large = size >= LARGE
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS  # what is shared gets no huge pages
    private = mmap.mmap(-1, size + HUGE_PAGE if large else max(size, 1), flags=flags)
    if large and hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel that has none
            private.madvise(mmap.MADV_HUGEPAGE)
    with torch.inference_mode(False):  # or what is left of it couldn't be written outside of that mode
        memory = torch.frombuffer(private, dtype=torch.uint8)  # holds the map
        first = -memory.data_ptr() % HUGE_PAGE if large else 0
        return memory[first : first + size]
