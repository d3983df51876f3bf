"""The KV cache's free pages, given out so that those of a sequence lie side by side."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

RUN = 4  # blocks: a sequence begins where as many are free; of 8, which come 5 % faster, more stay unused


class FreeBlocks:
    """Numbers of free blocks, among them runs: RUN blocks behind each other, the first a multiple of RUN.

    Attention reads a sequence's pages one after the other. Where they lie side by side the hardware fetches
    them ahead: on two cores of Zen 4 they came twice as fast as pages that several sequences had been given
    in turn. So a sequence gets the block behind its last one, or begins a run that nobody has begun.
    """

    def __init__(self, size: int) -> None:
        """All blocks below `size` are free, the first ones to be given out first."""
        self._is_free = bytearray(b"\1") * size
        self._in_run = [0] * (-(-size // RUN))  # free ones, by run
        whole = size // RUN
        # Whole runs, and the free blocks of others; last in, first out. Not dicts: whoever asks for the last
        # key of one passes all that were removed behind it
        self._runs = OrderedDict.fromkeys(range(whole - 1, -1, -1))
        self._rest = OrderedDict.fromkeys(range(size - 1, whole * RUN - 1, -1))
        self._count = size
        self.high_water = 0  # blocks from here on have never been given out by this object
        for block in range(size):
            self._in_run[block // RUN] += 1

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return (block for block, is_free in enumerate(self._is_free) if is_free)

    def add(self, block: int) -> None:
        """Let a block be given out."""
        run = block // RUN
        self._is_free[block] = 1
        self._in_run[run] += 1
        self._count += 1
        if self._in_run[run] < RUN:
            self._rest[block] = None
            return
        for other in range(run * RUN, (run + 1) * RUN):
            self._rest.pop(other, None)
        self._runs[run] = None  # pages that were used last are used first: they are in the caches

    def beside(self, block: int | None) -> int | None:
        """Return the block behind this one, or else the first of a whole run; None if neither is free."""
        if block is not None and block + 1 < len(self._is_free) and self._is_free[block + 1]:
            return block + 1
        return next(reversed(self._runs)) * RUN if self._runs else None

    def any(self) -> int:
        """Return the block that came back last, of those that are free; no run of them is whole."""
        return next(reversed(self._rest))

    def take(self, block: int) -> None:
        """Give out a free block."""
        run = block // RUN
        if run in self._runs:
            del self._runs[run]
            self._rest |= dict.fromkeys(range((run + 1) * RUN - 1, run * RUN - 1, -1))
        del self._rest[block]
        self._is_free[block] = 0
        self._in_run[run] -= 1
        self._count -= 1
        self.high_water = max(self.high_water, block + 1)
