"""The places that sequences in flight take: of this process alone, or of several API workers together."""

from __future__ import annotations

from typing import Protocol

from inference.frontend.shared import SharedMemory

COUNT_BYTES = 8


class Places(Protocol):
    """Counts what is taken, exactly."""

    def take(self, count: int, limit: int) -> bool:
        """Take so many if no more than `limit` are then taken by anyone; never waits for room."""

    def give(self, count: int) -> None:
        """Give so many back."""

    @property
    def taken(self) -> int:
        """Return how many are taken by anyone."""


class OwnPlaces:
    """Those of the only process."""

    def __init__(self) -> None:
        self.taken = 0

    def take(self, count: int, limit: int) -> bool:
        """Take so many, if there is room."""
        if self.taken + count > limit:
            return False
        self.taken += count
        return True

    def give(self, count: int) -> None:
        """Give so many back."""
        self.taken -= count


class SharedPlaces:
    """Those of several processes: a count for each in memory that they share, written by none but its owner.

    A process that dies has its count set to zero by `vacate`. Only taking needs a lock, for a microsecond:
    a count that goes down between the reading and the writing leaves more room, not less.
    """

    def __init__(self, memory: SharedMemory, slot: int) -> None:
        """`memory` has COUNT_BYTES for each process; `slot` is where this one counts."""
        self._memory = memory
        self._counts = memory.view().cast("q")
        self._slot = slot

    def take(self, count: int, limit: int) -> bool:
        """Take so many, if there is room."""
        with self._memory.locked():
            if self.taken + count > limit:
                return False
            self._counts[self._slot] += count
            return True

    def give(self, count: int) -> None:
        """Give so many back."""
        self._counts[self._slot] -= count

    @property
    def taken(self) -> int:
        """Return how many are taken by anyone."""
        return sum(self._counts)

    def vacate(self, slot: int) -> None:
        """Give back what a process that has ended had taken."""
        self._counts[slot] = 0
