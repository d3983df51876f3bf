from __future__ import annotations

from typing import Any

import pytest

from inference.grammar.fault import GrammarFault
from tests.unit.inference.grammar.vocabularies import follows, schema


def tagged(name: str, **more: Any) -> dict[str, Any]:
    """Return the schema of an object that says what it is."""
    return {"type": "object", "properties": {"kind": {"const": name}, **more}, "required": ["kind"]}


def union(*names: str, **definitions: Any) -> dict[str, Any]:
    """Return a schema of one of several definitions."""
    return {"oneOf": [{"$ref": f"#/$defs/{name}"} for name in names], "$defs": definitions}


def test_a_union_by_reference_is_told_apart_by_its_tag() -> None:
    cat, dog = tagged("cat", lives={"type": "integer"}), tagged("dog", age={"type": "integer"})
    grammar = schema(union("Cat", "Dog", Cat=cat, Dog=dog))
    assert follows(grammar, '{"kind": "cat", "lives": 9}')
    assert follows(grammar, '{"kind": "dog", "age": 9}')
    assert not follows(grammar, '{"kind": "cow"}')


def test_a_union_by_reference_is_told_apart_by_its_types() -> None:
    grammar = schema(union("A", "B", "C", A={"type": "integer"}, B={"type": "string"}, C=tagged("c")))
    assert all(follows(grammar, text) for text in ("1", '"a"', '{"kind": "c"}'))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (tagged("a"), {**tagged("b"), "required": []}),
        (tagged("a"), tagged("a", more={})),
        (
            {"properties": {"kind": {"const": "a"}}, "required": ["kind"]},  # each lets any number pass
            {"properties": {"kind": {"const": "b"}}, "required": ["kind"]},
        ),
        ({"type": "integer"}, {"type": "number"}),
        ({"type": "object", "properties": {"kind": {"enum": [["a"]]}}, "required": ["kind"]}, tagged("b")),
        ({"$ref": "#/$defs/B"}, tagged("b")),
    ],
)
def test_alternatives_that_may_both_apply_are_refused(one: Any, other: Any) -> None:
    with pytest.raises(GrammarFault, match="oneOf"):
        schema(union("A", "B", A=one, B=other))
