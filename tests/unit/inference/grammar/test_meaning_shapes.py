"""Schemas as pydantic and others write them: what a model may answer, and what it no longer invents."""

from __future__ import annotations

import json
import sys
from typing import Any

import jsonschema_rs
import pytest

from inference.grammar.meaning import WORK, as_meant
from tests.unit.inference.grammar.vocabularies import follows, schema

TEXT, INTEGER = {"type": "string"}, {"type": "integer"}
E: dict[str, Any] = {"title": "E", "description": "An enumeration.", "enum": ["q", "r"], "type": "string"}
CAT = {
    "properties": {"kind": {"const": "cat", "type": "string"}, "lives": INTEGER},
    "required": ["kind", "lives"],
    "title": "Cat",
    "type": "object",
}
DOG = {
    "properties": {"kind": {"enum": ["dog"], "type": "string"}, "name": TEXT},
    "required": ["kind", "name"],
    "title": "Dog",
    "type": "object",
}
PETS = {"Cat": CAT, "Dog": DOG}
REF_CAT, REF_DOG = {"$ref": "#/$defs/Cat"}, {"$ref": "#/$defs/Dog"}
DISCRIMINATED: dict[str, Any] = {
    "discriminator": {"mapping": {"cat": "#/$defs/Cat", "dog": "#/$defs/Dog"}, "propertyName": "kind"},
    "oneOf": [REF_CAT, REF_DOG],
}
TREE = {
    "type": "object",
    "title": "Tree",
    "properties": {
        "value": {"title": "Value", "type": "integer"},
        "left": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"type": "null"}], "default": None},
        "children": {"type": "array", "items": {"$ref": "#/$defs/Tree"}},
    },
    "required": ["value"],
}


def untyped(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "type"}


def listed(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": [*properties]}


# Schema, what may be answered, what may not
SHAPES: dict[str, tuple[dict[str, Any], list[Any], list[Any]]] = {
    "an enumeration by allOf": (
        {
            "properties": {"a": {"allOf": [{"$ref": "#/$defs/E"}]}},
            "required": ["a"],
            "$defs": {"E": {"enum": ["q"], "type": "string"}},
        },
        [{"a": "q"}],
        [18, {"a": "r"}, {"a": "q", "b": 1}],
    ),
    "pydantic 1: an enumeration with a default": (
        {
            "title": "M",
            "type": "object",
            "properties": {"a": {"default": "q", "allOf": [{"$ref": "#/definitions/E"}]}},
            "definitions": {"E": E},
        },
        [{}, {"a": "r"}],
        [{"b": 1}, {"a": "s"}],
    ),
    "pydantic 1: a described model in a recursive one": (
        {
            "$ref": "#/definitions/Node",
            "definitions": {
                "Node": {
                    "type": "object",
                    "properties": {
                        "value": INTEGER,
                        "next": {"description": "d", "allOf": [{"$ref": "#/definitions/Node"}]},
                    },
                    "required": ["value"],
                }
            },
        },
        [{"value": 1, "next": {"value": 2}}],
        [{"value": 1, "next": {"value": 2, "x": 1}}],
    ),
    "pydantic 2: a discriminated union": (
        {**listed(pet={**DISCRIMINATED, "title": "Pet"}), "$defs": PETS},
        [{"pet": {"kind": "cat", "lives": 9}}, {"pet": {"kind": "dog", "name": "x"}}],
        [{"pet": {"kind": "cat", "lives": 9, "x": 1}}, {"pet": {"kind": "dog", "lives": 9}}, {"pet": 1}],
    ),
    "pydantic 2: a list of an annotated union": (
        {**listed(pets={"type": "array", "items": DISCRIMINATED}), "$defs": PETS},
        [{"pets": []}, {"pets": [{"kind": "dog", "name": "x"}]}],
        [{"pets": [{"kind": "dog", "name": "x", "lives": 9}]}],
    ),
    "pydantic 2: a union that is the whole": (
        {**DISCRIMINATED, "$defs": PETS},
        [{"kind": "cat", "lives": 9}],
        [{"kind": "cat", "lives": 9, "name": "x"}],
    ),
    "pydantic 2: an optional model, and an enumeration by allOf": (
        {
            **listed(
                pet={"anyOf": [REF_CAT, {"type": "null"}], "default": None},
                e={"allOf": [{"$ref": "#/$defs/E"}]},
            ),
            "$defs": {**PETS, "E": E},
        },
        [{"pet": None, "e": "q"}, {"pet": {"kind": "cat", "lives": 9}, "e": "r"}],
        [{"pet": {"kind": "cat", "lives": 9, "x": 1}, "e": "q"}, {"pet": None, "e": "q", "x": 1}],
    ),
    "pydantic 2: a tree": (
        {"$ref": "#/$defs/Tree", "$defs": {"Tree": TREE}},
        [{"value": 1, "left": {"value": 2, "left": None}}, {"value": 1, "children": [{"value": 2}]}],
        [{"value": 1, "children": [{"value": 2, "x": 1}]}, {"value": 1, "x": 1}],
    ),
    "a tree that refers to the whole": (
        {**listed(value=INTEGER), "properties": {"value": INTEGER, "left": {"allOf": [{"$ref": "#"}]}}},
        [{"value": 1, "left": {"value": 2}}],
        [{"value": 1, "left": {"value": 2, "x": 1}}],
    ),
    "properties named as keywords": (
        {
            **listed(**{"not": {"$ref": "#/$defs/E"}, "if": REF_CAT, "allOf": TEXT}),
            "$defs": {"E": E, "Cat": CAT},
        },
        [{"not": "q", "if": {"kind": "cat", "lives": 9}, "allOf": "x"}],
        [{"not": "q", "if": {"kind": "cat", "lives": 9, "x": 1}, "allOf": "x"}],
    ),
    "references to alternatives without a type": (
        {**DISCRIMINATED, "$defs": {name: untyped(part) for name, part in PETS.items()}},
        [{"kind": "cat", "lives": 9}, {"kind": "dog", "name": "x"}],
        [1, {"kind": "cat", "lives": 9, "x": 1}],
    ),
    "one of an object and null": (
        {"oneOf": [listed(a=INTEGER), {"type": "null"}]},
        [{"a": 1}, None],
        [{"a": 1, "b": 2}],
    ),
    "a model with more": (
        {"allOf": [REF_CAT, listed(owner=listed(name=TEXT))], "$defs": PETS},
        [{"kind": "cat", "lives": 9, "owner": {"name": "x"}}],
        [{"kind": "cat", "lives": 9}, {"kind": "cat", "lives": 9, "owner": {"name": "x", "age": 1}}],
    ),
    "two models as one": (
        {
            "allOf": [{"$ref": "#/$defs/A"}, {"$ref": "#/$defs/B"}],
            "$defs": {"A": listed(a=TEXT), "B": listed(b=TEXT)},
        },
        [{"a": "x", "b": "y"}],
        [{"a": "x"}, {"b": "y"}],
    ),
    "a model of which more is required": (
        {
            "allOf": [{"$ref": "#/$defs/M"}, {"required": ["b"]}],
            "$defs": {"M": {"properties": {"a": TEXT, "b": TEXT}}},
        },
        [{"a": "x", "b": "y"}, {"b": "y"}],
        [{"a": "x"}, {"b": "y", "c": 1}, 1],
    ),
    "one of several names": (
        {"properties": {"a": TEXT, "b": TEXT}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
        [{"a": "x"}, {"b": "x"}],
        [{"c": 1}, {"a": "x", "c": 1}],
    ),
    "models by name": (
        {"type": "object", "additionalProperties": listed(a=TEXT)},
        [{"x": {"a": "y"}}],
        [{"x": {"a": "y", "b": 1}}],
    ),
    "models one after the other": (
        {"type": "array", "prefixItems": [listed(a=TEXT)], "items": False, "minItems": 1},
        [[{"a": "x"}]],
        [[{"a": "x", "b": 1}]],
    ),
    "definitions in another place": (
        {
            "properties": {"c": {"allOf": [{"$ref": "#/components/schemas/C"}]}},
            "components": {"schemas": {"C": CAT}},
        },
        [{"c": {"kind": "cat", "lives": 9}}],
        [{"c": {"kind": "cat", "lives": 9, "x": 1}}],
    ),
}


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_can_answer_what_is_listed_and_nothing_else(name: str) -> None:
    shape, valid, invalid = SHAPES[name]
    grammar = schema(as_meant(shape))
    for answer in valid:
        assert jsonschema_rs.is_valid(shape, answer)
        assert follows(grammar, json.dumps(answer))
    for answer in invalid:
        assert not follows(grammar, json.dumps(answer))


OPEN = {"type": "object", "properties": {"a": TEXT}}
REF = {"$ref": "#/$defs/O"}
UNTOUCHED: dict[str, dict[str, Any]] = {
    "not": {"not": {"properties": {"a": TEXT}}, "anyOf": [{"not": REF}]},
    "not, by a reference": {"not": REF},
    "not, behind others": {"anyOf": [{"not": {"items": REF}}]},
    "if": {"if": REF, "then": {"type": "object"}},
    "then and else": {"if": {"required": ["a"]}, "then": OPEN, "else": REF},
    "contains": {"contains": REF},
    "one of those that don't exclude each other": {"oneOf": [REF, {"type": "object", "required": ["b"]}]},
    "one of an object and any other": {"oneOf": [REF, {}]},
    "literals": {"enum": [OPEN], "allOf": [{"$ref": "#/enum/0"}, {"not": REF}]},
    "a reference that moves": {"anyOf": [REF, {"$dynamicRef": "#x"}]},
    "a reference that moves, elsewhere": {"anyOf": [REF], "not": {"$dynamicRef": "#x"}},
    "a reference to nothing": {"anyOf": [{"allOf": [REF, {"$ref": "#/$defs/P"}]}]},
    "a reference that is none": {"allOf": [REF, {"$ref": 1}]},
}


@pytest.mark.parametrize("name", UNTOUCHED)
def test_what_would_loosen_or_contradict_stays_as_it_is(name: str) -> None:
    whole = {**UNTOUCHED[name], "$defs": {"O": OPEN}}
    assert as_meant(whole) == whole


def test_a_definition_closes_only_where_it_may_wherever_it_is_referred_to() -> None:
    joined = {"allOf": [REF_CAT, listed(owner=TEXT)]}
    whole = {"anyOf": [REF_CAT, joined, REF_DOG], "$defs": PETS}
    assert as_meant(whole) == {**whole, "$defs": {"Cat": CAT, "Dog": {**DOG, "additionalProperties": False}}}


def test_alternatives_of_which_one_has_to_stay_as_it_is_are_none_for_numbers() -> None:
    """Of one that is for objects now, and one that isn't, a number would be valid by exactly one."""
    parts = {name: untyped(part) for name, part in PETS.items()}
    meant = as_meant({"properties": {"pet": DISCRIMINATED, "other": {"not": REF_CAT}}, "$defs": parts})
    assert meant["$defs"] == {"Cat": parts["Cat"], "Dog": {**DOG, "additionalProperties": False}}
    assert jsonschema_rs.is_valid(meant, {"pet": {"kind": "cat", "lives": 9}})
    assert not jsonschema_rs.is_valid(meant, {"pet": 1})


def test_a_schema_that_takes_too_much_work_stays_as_it_is() -> None:
    names = [f"d{at}" for at in range(int((2 * WORK) ** 0.5))]
    each = {"anyOf": [{"$ref": f"#/$defs/{name}"} for name in names], "properties": {"a": {}}}
    whole = {"properties": {"a": {}}, "$defs": {name: dict(each) for name in names}}
    assert as_meant(whole) == whole


def test_a_hundred_models_that_refer_to_each_other_are_narrowed() -> None:
    def optional(at: int) -> dict[str, Any]:
        return {"anyOf": [{"$ref": f"#/$defs/M{at % 100}"}, {"type": "null"}]}

    models = {
        f"M{at}": {"type": "object", "properties": {f"p{to}": optional(7 * at + to) for to in range(9)}}
        for at in range(100)
    }
    meant = as_meant({"$ref": "#/$defs/M0", "$defs": models})
    assert all(each["additionalProperties"] is False for each in meant["$defs"].values())


def _chained(**schema: Any) -> dict[str, Any]:
    """Return a schema beside references that lead to a constant, one to the next."""
    chain: dict[str, Any] = {f"e{at}": {"$ref": f"#/$defs/e{at + 1}"} for at in range(14)}
    return {"$defs": {**chain, "e14": {"const": "s"}, **schema.pop("defs", {})}, **schema}


def _holding(of_values: dict[str, Any], count: int) -> dict[str, Any]:
    """Return many definitions that each join one, which has many values, with a property of their own."""
    joined = {"allOf": [{"$ref": "#/$defs/values"}]}
    each = {f"d{at}": {**joined, "properties": {f"a{at}": {}}} for at in range(count)}
    return {"$defs": {"values": of_values, **each}, "properties": {"a": {}}}


TAGGED = {"type": "object", "properties": {"k": {"$ref": "#/$defs/e0"}}, "required": ["k"] * 400}


@pytest.mark.parametrize(
    "made",
    [
        _chained(defs={"a": TAGGED}, oneOf=[{"$ref": "#/$defs/a"}] * 400),
        {"$defs": {"a": {"type": ["string"] * 10_000}}, "oneOf": [{"$ref": "#/$defs/a"}] * 600},
        _holding({"enum": ["x"] * 20_000}, 1_000),
        _holding({"not": {"enum": ["x"] * 20_000}}, 1_000),
        _holding({"required": ["x"] * 20_000}, 1_000),
    ],
    ids=["tags", "types", "values", "values not had", "names"],
)
def test_work_that_a_small_schema_makes_is_bounded(made: dict[str, Any]) -> None:
    """Each took seconds, on the thread that serves everybody; counted by what Python executes."""
    lines = 0

    def count(frame: Any, event: str, argument: object) -> Any:
        nonlocal lines
        lines += 1
        return count

    before = sys.gettrace()
    sys.settrace(count)
    try:
        as_meant(made)
    finally:
        sys.settrace(before)
    assert lines < 240 * WORK


def test_what_is_given_is_not_changed() -> None:
    whole: dict[str, Any] = {"properties": {"a": {"properties": {"b": {}}}}}
    before = json.dumps(whole)
    as_meant(whole)
    assert json.dumps(whole) == before
