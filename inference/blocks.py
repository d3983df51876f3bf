"""The KV cache's pages: who holds which, and how many are free."""

from __future__ import annotations

from collections.abc import Iterable

PAGE = 16  # tokens in one block


def blocks_for(tokens: int) -> int:
    """Return how many blocks hold `tokens` tokens."""
    return -(-tokens // PAGE)


class BlockPool:
    """Block numbers, each either free or held by exactly one sequence."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._free = list(range(size - 1, -1, -1))  # last in, first out: warm pages are used again
        self._held: set[int] = set()

    @property
    def free(self) -> int:
        """Return how many blocks nobody holds."""
        return len(self._free)

    @property
    def held(self) -> frozenset[int]:
        """Return the blocks that sequences hold."""
        return frozenset(self._held)

    def take(self, count: int) -> list[int]:
        """Return `count` free blocks, which are then held; the caller has checked `free`."""
        assert count <= self.free, f"{count} blocks wanted, {self.free} free"
        taken = [self._free.pop() for _ in range(count)]
        self._held.update(taken)
        return taken

    def give_back(self, blocks: Iterable[int]) -> None:
        """Free `blocks`; each must be held."""
        for block in blocks:
            self._held.remove(block)
            self._free.append(block)
