"""Values just out of the ranges that the document gives in words: `> 0, <= 1`, `n to --max-n (16)`, ..."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tests.contract.members import PLACES, Place

BOUND = re.compile(r"(>=|>|<=) (-?\d+(?:\.\d+)?)")
SPAN = re.compile(r"(-?\d+|[a-z_]+) to (-?\d+|[a-z_]+|--[\w-]+ \((\d+)\)|--[\w-]+)")
EMPTY = ("not empty", "at least one")


def values_beyond(place: Place) -> Iterator[Any]:
    """Yield values that the member's schema takes and its range doesn't; none where the words are others."""
    yield from (value for value in _candidates(str(place.told.get("x-range", ""))) if place.fits(value))


def values_beyond_others(place: Place) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Yield values out of a range that another member bounds, each with that member and its value."""
    found = SPAN.fullmatch(str(place.told.get("x-range", "")))
    if found is None:
        return
    beside = {each.member for each in PLACES if each.schema == place.schema}
    if found[1] in beside:
        yield 1, {found[1]: 2}
    if found[2] in beside:
        yield 3, {found[2]: 2}


def _candidates(words: str) -> Iterator[Any]:
    if words in EMPTY:
        yield from ("", [])
    elif SPAN.fullmatch(words):
        yield from _beyond_span(words)
    elif all(BOUND.fullmatch(part) for part in words.split(", ")):
        for part in words.split(", "):
            yield from _beyond_bound(part)


def _beyond_bound(words: str) -> Iterator[float]:
    found = BOUND.fullmatch(words)
    assert found is not None
    sign, at = found[1], _number(found[2])
    if sign == ">":
        yield from (at, at - 1)
    elif sign == ">=":
        yield at - 1
    else:
        yield at + 1
        yield at + 0.001


def _beyond_span(words: str) -> Iterator[float]:
    found = SPAN.fullmatch(words)
    assert found is not None
    low, high = found[1], found[3] or found[2]
    if low.lstrip("-").isdigit():
        yield int(low) - 1
    if high.lstrip("-").isdigit():
        yield from (int(high) + 1, int(high) + 0.5)


def _number(text: str) -> float:
    return float(text) if "." in text else int(text)
