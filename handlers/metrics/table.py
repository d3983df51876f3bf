"""What openapi/metrics.yaml says of each metric, and where its numbers stand in a row of numbers.

A counter or gauge has one number for each of its label's values, a summary two, a histogram one for each
bucket and the sum of what it observed. What has labels that are `told` has no numbers: it is always 1.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from openapi.yamlload import parse

if TYPE_CHECKING:
    from inference.types import ModelInfo


@dataclass(frozen=True, slots=True)
class Series:
    """One metric with one value of its label."""

    name: str
    kind: str  # counter, gauge, summary or histogram
    label: tuple[str, str] | None  # name and value
    each: str  # label under which each API process is shown by itself; "" where all are summed
    buckets: str | None  # the set that a histogram's bounds are of
    start: int  # of its numbers in a row
    stop: int

    @property
    def needs_model(self) -> bool:
        """Return whether its bounds are known with the model only."""
        return self.buckets is not None and "share_of" in table()["buckets"][self.buckets]

    @property
    def key(self) -> tuple[str, str]:
        """Return its name and its label's value, "" without a label."""
        return self.name, self.label[1] if self.label else ""


@cache
def table() -> dict[str, Any]:
    """Return metrics.yaml: `buckets` and `metrics`."""
    text = files("openapi").joinpath("metrics.yaml").read_text(encoding="utf-8")
    contract: dict[str, Any] = parse(text)
    return contract


@cache
def layout() -> Mapping[str, tuple[Series, ...]]:
    """Return the series of each metric, in the order of the file."""
    return {row["name"]: tuple(found) for row, found in _rows()}


@cache
def all_series() -> tuple[Series, ...]:
    """Return the series of all metrics."""
    return tuple(series for found in layout().values() for series in found)


def width() -> int:
    """Return how many numbers a row has."""
    return max(series.stop for series in all_series())


def label_names(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the labels of a metric, but for a bucket's `le`."""
    return (*row.get("labels", ()), *filter(None, [row.get("each")]), *row.get("told", ()))


def bounds(buckets: str, model: ModelInfo | None) -> Sequence[float]:
    """Return the upper bounds of a set of buckets; those that depend on the model need it."""
    rule = table()["buckets"][buckets]
    count: int = rule["count"]
    if "factor" in rule:
        # multiplied step by step, so that the bounds are TGI's to the last digit
        factors = [rule["first"], *[rule["factor"]] * count]
        return list(itertools.accumulate(factors, operator.mul))[1:]
    if "share_of" in rule:
        limit: int = getattr(model, rule["share_of"])
        return [limit / count * step for step in range(1, count + 1)]
    return [float(rule["step"] * step) for step in range(1, count + 1)]


def _rows() -> Iterator[tuple[dict[str, Any], list[Series]]]:
    stop = 0
    for row in table()["metrics"]:
        labels: list[tuple[str, str] | None] = [
            (name, value) for name, values in row.get("labels", {}).items() for value in values
        ]
        found = []
        for label in [] if "told" in row else labels or [None]:
            start, stop = stop, stop + _numbers(row)
            each, buckets = row.get("each", ""), row.get("buckets")
            found.append(Series(row["name"], row["type"], label, each, buckets, start, stop))
        yield row, found


def _numbers(row: Mapping[str, Any]) -> int:
    if row["type"] == "histogram":
        count: int = table()["buckets"][row["buckets"]]["count"]
        return count + 2  # what is above all bounds, and the sum
    return 2 if row["type"] == "summary" else 1
