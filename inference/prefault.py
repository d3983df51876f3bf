"""Memory for the KV cache's next pages, found while nothing is computed."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from inference.blocks import PAGE
from inference.kernels.arena import HUGE_PAGE

FIRST_TOKENS = 2048  # that have memory before the first request,
FIRST_BYTES = 64 << 20  # and no more than that
AHEAD_TOKENS = 16384  # that are to have it behind those that were ever needed,
AHEAD_BYTES = 512 << 20  # and no more than that


class Prefault:
    """Writes to a cache's arrays before they are needed, so that steps needn't wait for their memory.

    Memory that is written for the first time has to be found and cleared: 0.2 ms for a huge page, and 5 to
    7 ms where the machine is virtual and its host takes back what isn't used, as measured on Zen 5. Of a
    step's threads one does that and the others wait for it. A server that isn't filled yet lost 6 % of its
    time so.
    """

    def __init__(self, arrays: Sequence[Tensor]) -> None:
        """Find memory for the first tokens; of each array the first dimension is the cache's blocks."""
        self._arrays = tuple(arrays)
        self._blocks = min((len(array) for array in self._arrays), default=0)
        sizes = [array[0].nbytes for array in self._arrays if self._blocks]
        self._ahead = _blocks_of(AHEAD_TOKENS, AHEAD_BYTES, sum(sizes))
        self._piece = max(1, HUGE_PAGE // max(sizes, default=HUGE_PAGE))  # blocks
        self._found = 0  # the first block that has no memory in some array,
        self._next = 0  # this one
        first = _blocks_of(FIRST_TOKENS, FIRST_BYTES, sum(sizes))
        while self._found < min(first, self._blocks):
            self._find()

    def advance(self, reached: int) -> bool:
        """Find the memory of about one huge page, if some is to be found; return whether it was.

        `reached`: blocks from here on were never in use. What they hold is lost.
        """
        if reached > self._found:
            self._found, self._next = reached, 0
        if self._found >= min(reached + self._ahead, self._blocks):
            return False
        self._find()
        return True

    def _find(self) -> None:
        self._arrays[self._next][self._found : self._found + self._piece].zero_()
        self._next = (self._next + 1) % len(self._arrays)
        if not self._next:
            self._found += self._piece


def _blocks_of(tokens: int, most: int, size: int) -> int:
    """Return how many blocks of `size` bytes hold so many tokens, in no more than `most` bytes."""
    return min(tokens // PAGE, most // max(size, 1))
