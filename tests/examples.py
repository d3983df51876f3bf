"""How many examples of a property are drawn: all by hand, a part in `.ci/run`, which has to end in time."""

from __future__ import annotations

from hypothesis import settings

ALL = 100  # that hypothesis draws unless told otherwise


def examples(count: int) -> int:
    """Return the part of so many examples that the chosen profile draws."""
    return max(1, count * settings().max_examples // ALL)
