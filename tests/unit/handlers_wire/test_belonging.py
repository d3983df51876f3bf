"""Members beside a type that they don't go with."""

from __future__ import annotations

import pytest

from handlers.wire.belonging import Belongs, refuse_others
from inference.errors import InvalidInput

BELONGS: Belongs = {"a": ("x", "both"), "b": ("y", "both"), "neither": ()}


@pytest.mark.parametrize(
    ("kind", "given"),
    [("a", {"x": 1, "both": 1}), ("b", {"y": 0, "x": None}), ("neither", {"z": 1}), ("unknown", {"x": 1})],
)
def test_what_goes_with_a_type_or_with_any_may_stand_beside_it(kind: str, given: dict[str, object]) -> None:
    refuse_others(given, BELONGS, kind, "place")


@pytest.mark.parametrize(
    ("kind", "given", "wrong"),
    [("a", {"x": 1, "y": 0}, "y"), ("neither", {"both": ""}, "both"), ("b", {"x": [], "y": 1}, "x")],
)
def test_what_goes_with_another_type_is_refused_by_its_name(
    kind: str, given: dict[str, object], wrong: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        refuse_others(given, BELONGS, kind, "place")
    assert str(refused.value) == f"`place.{wrong}` does not go with the type {kind!r}: leave it out"
