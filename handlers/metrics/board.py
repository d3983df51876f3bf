"""The numbers of all processes of one server: a row for each, which it alone writes and all can read.

A process that dies leaves its numbers behind, and the one that takes its place goes on counting from there,
so that no counter ever goes down.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from inference.frontend.shared import SharedMemory

NUMBER_BYTES = 8


class Board:
    """Rows of float64."""

    def __init__(self, numbers: memoryview[float], rows: int) -> None:
        width = len(numbers) // rows
        self._rows = [numbers[at * width : (at + 1) * width] for at in range(rows)]

    @classmethod
    def own(cls, width: int) -> Board:
        """Return the board of a server that is one process."""
        return cls(memoryview(array("d", [0.0]) * width), 1)

    @classmethod
    def of(cls, memory: SharedMemory, rows: int) -> Board:
        """Return the board in memory of `size`."""
        return cls(memory.view().cast("d"), rows)

    @property
    def rows(self) -> int:
        """Return how many processes have a row."""
        return len(self._rows)

    @property
    def workers(self) -> int:
        """Return how many of them answer requests: the last of several is of who started the others."""
        return max(len(self._rows) - 1, 1)

    @staticmethod
    def size(rows: int, width: int) -> int:
        """Return how many bytes a board needs."""
        return rows * width * NUMBER_BYTES

    def row(self, at: int) -> memoryview[float]:
        """Return the numbers of one process."""
        return self._rows[at]

    def sums(self, start: int, stop: int) -> Sequence[float]:
        """Return each of some numbers, summed over all processes."""
        if len(self._rows) == 1:
            return self._rows[0][start:stop].tolist()
        return [sum(column) for column in zip(*(row[start:stop] for row in self._rows), strict=True)]

    def highest(self, at: int) -> float:
        """Return the highest that any process has for one number."""
        return max(row[at] for row in self._rows)
