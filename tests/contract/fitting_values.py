"""Values that a member's schema takes, for members that are told apart by none."""

from __future__ import annotations

from typing import Any

from tests.contract.members import Place

VALUES = [  # of any member, as far as they fit its schema
    *(True, False, 0, 1, 3, 0.25, "", "x", {}, [], {"a": 1}, [{}], ["x"], {"7": 1.5}, [0.5]),
    *({"url": "https://example.com/cat.png"}, {"type": "json_object"}, {"type": "regex", "value": "a"}),
    {"type": "json_schema", "schema": {"type": "object"}},
    *([{"type": "function", "function": {"name": "f"}}], {"type": "function", "function": {"name": "f"}}),
]


def fitting(place: Place) -> tuple[list[Any], list[Any]]:
    """Return values that the member's schema takes: those that ask for something, and those that don't."""
    neutral = [value for value in (*place.neutral, None) if place.fits(value)]
    asking = [
        value for value in VALUES if place.fits(value) and not any(same(value, none) for none in neutral)
    ]
    return asking, neutral


def same(left: Any, right: Any) -> bool:
    """Compare as JSON does, where true is not 1."""
    return bool(left == right) and isinstance(left, bool) is isinstance(right, bool)
