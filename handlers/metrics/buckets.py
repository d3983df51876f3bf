"""Histograms as plain numbers in a row."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from itertools import accumulate


class Histogram:
    """Counts observations between bounds; one thread observes, any may read.

    Its numbers are the count of each bucket, the last of what is above all bounds, and the sum of the values.
    """

    __slots__ = ("_bounds", "_numbers")

    def __init__(self, bounds: Sequence[float], numbers: memoryview[float]) -> None:
        """`bounds` are the upper ones, ascending; `numbers` are two more than those."""
        self._bounds = bounds
        self._numbers = numbers

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._numbers[bisect_left(self._bounds, value)] += 1
        self._numbers[-1] += value


def cumulated(counts: Iterable[float]) -> list[float]:
    """Return how many observations lie below each bound, and at the end how many there are."""
    return list(accumulate(counts))
