"""The places that each owner's sequences take: of this process alone, or of several API workers together."""

from __future__ import annotations

from collections import Counter
from math import inf
from typing import Protocol

from inference.frontend.rows import SharedRows
from inference.frontend.shared import SharedMemory

ROWS_EACH = 8  # for each owner that there is room for: then no set of them is ever full
MOST_ROWS = 131_072


class Owners(Protocol):
    """Counts what each owner has taken, exactly."""

    def take(self, owner: str, count: int, limit: int) -> bool:
        """Take so many if the owner then has no more than `limit`, or had none; never waits for room."""

    def give(self, owner: str, count: int) -> None:
        """Give so many back."""


class OwnOwners:
    """Those of the only process."""

    def __init__(self) -> None:
        self._taken: Counter[str] = Counter()

    def take(self, owner: str, count: int, limit: int) -> bool:
        """Take so many, if there is room."""
        if 0 < self._taken[owner] > limit - count:
            return False
        self._taken[owner] += count
        return True

    def give(self, owner: str, count: int) -> None:
        """Give so many back."""
        self._taken[owner] -= count
        if not self._taken[owner]:
            del self._taken[owner]


class SharedOwners:
    """Those of several processes: a row for each owner, with a count for each process."""

    def __init__(self, memory: SharedMemory, slots: int, slot: int) -> None:
        """`memory` is what `create` made for so many processes; `slot` is where this one counts."""
        self._rows = SharedRows(memory, slots, lambda row: inf if any(row) else 0.0)
        self._slot = slot

    @staticmethod
    def create(slots: int, limit: int) -> SharedMemory:
        """Return memory for the owners of at most `limit` sequences in flight."""
        return SharedRows.create(min(ROWS_EACH * limit, MOST_ROWS), slots)

    def take(self, owner: str, count: int, limit: int) -> bool:
        """Take so many, if there is room."""
        with self._rows.row(owner) as row:
            if row is None or 0 < sum(row) > limit - count:
                return False
            row[self._slot] += count
            return True

    def give(self, owner: str, count: int) -> None:
        """Give so many back."""
        with self._rows.row(owner) as row:
            assert row is not None, "what was taken isn't forgotten"
            row[self._slot] -= count

    def vacate(self, slot: int) -> None:
        """Give back what a process that has ended had taken."""
        self._rows.clear(slot)
