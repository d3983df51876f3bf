from __future__ import annotations

from typing import Any

import pytest

from inference.grammar import alternatives
from inference.grammar.alternatives import Pairs, are_told_apart
from inference.grammar.fault import GrammarFault
from inference.grammar.tree import LATEST, Place, SchemaTree
from tests.unit.inference.grammar.vocabularies import LIMITS, follows, schema


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


def test_listed_texts_are_told_apart_beside_unions_by_reference() -> None:
    told = {"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}]}
    cat, dog = tagged("cat", sound=told), tagged("dog")
    grammar = schema(union("Cat", "Dog", Cat=cat, Dog=dog))
    assert follows(grammar, '{"kind": "cat", "sound": "c"}')
    assert not follows(grammar, '{"kind": "cat", "sound": "d"}')


def test_what_many_unions_refer_to_is_compared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def tags(place: Place, tree: SchemaTree, spend: Any) -> dict[str, frozenset[str]]:
        asked.append(id(place.schema))
        return whole(place, tree, spend)

    whole = alternatives._tags
    monkeypatch.setattr(alternatives, "_tags", tags)
    names = [f"N{at}" for at in range(40)]
    one = union(*names)
    root = {
        "properties": {f"p{at}": dict(one) for at in range(20)},
        "$defs": {name: tagged(name) for name in names},
    }
    tree = SchemaTree(root, LATEST, LIMITS)
    assert are_told_apart(tree)
    assert len(asked) == len({*asked}) == len(names)


def test_past_the_work_nothing_is_told_apart() -> None:
    tree = SchemaTree({}, LATEST, LIMITS)
    one, other = (Place("", tagged(name), 0) for name in "ab")
    assert Pairs(tree).apart(one, other)
    assert not Pairs(tree, work=1).apart(one, other)


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
