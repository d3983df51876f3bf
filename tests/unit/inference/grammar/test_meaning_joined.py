"""Alternatives and references that are one object with the words beside them."""

from __future__ import annotations

import json
from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.grammar.meaning import as_meant
from tests.unit.inference.grammar.vocabularies import follows, schema

ID = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
A = {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}
B = {"type": "object", "properties": {"b": {"type": "string"}}, "required": ["b"]}
DEFS = {"$defs": {"Id": ID, "A": A, "B": B}}
REF_ID, REF_A, REF_B = ({"$ref": f"#/$defs/{name}"} for name in ("Id", "A", "B"))
KINDS = [{"properties": {"kind": {"const": kind}}, "required": ["kind"]} for kind in "ab"]
PART = {"properties": {"p": {"type": "integer"}}}

# Schema, what it allows though the alternative or the reference alone doesn't list it, what it forbids
JOINED: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "references beside required properties": (
        {**ID, "anyOf": [REF_A, REF_B], **DEFS},
        {"id": 1, "a": "x"},
        {"a": "x"},
    ),
    "references beside properties": (
        {"type": "object", "properties": ID["properties"], "anyOf": [REF_A, REF_B], **DEFS},
        {"id": 1, "b": "x"},
        {"id": 1},
    ),
    "references in alternatives of alternatives": (
        {**ID, "anyOf": [{"anyOf": [REF_A]}, B], **DEFS},
        {"id": 1, "a": "x"},
        {"id": 1},
    ),
    "further properties of a type": (
        {"type": "object", "additionalProperties": {"type": "string"}, "anyOf": KINDS},
        {"kind": "a", "note": "x"},
        {"kind": "a", "note": 1},
    ),
    "further properties by name": (
        {"type": "object", "patternProperties": {"^x-": {"type": "string"}}, "anyOf": [A, B]},
        {"a": "x", "x-1": "y"},
        {"a": "x", "x-1": 1},
    ),
    "a required name": (
        {"type": "object", "required": ["id"], "anyOf": [A, B]},
        {"a": "x", "id": 1},
        {"a": "x"},
    ),
    "a required name around several": (
        {"type": "object", "required": ["id"], "anyOf": [{"anyOf": [A, B]}]},
        {"a": "x", "id": 1},
        {"a": "x"},
    ),
    "a required name beside references": (
        {"type": "object", "required": ["id"], "anyOf": [REF_A, REF_B], **DEFS},
        {"a": "x", "id": 1},
        {"a": "x"},
    ),
    "a reference beside alternatives": (
        {**REF_ID, "anyOf": [A, B], **DEFS},
        {"id": 1, "a": "x"},
        {"a": "x"},
    ),
    "a reference beside a required name": (
        {**REF_ID, "required": ["id", "name"], **DEFS},
        {"id": 1, "name": "x"},
        {"id": 1},
    ),
    "a reference beside further properties": (
        {**REF_ID, "additionalProperties": {"type": ["string", "integer"]}, **DEFS},
        {"id": 1, "name": "x"},
        {"id": 1, "name": None},
    ),
    "a number of properties": (
        {"type": "object", "maxProperties": 2, "anyOf": [A, B]},
        {"a": "x", "id": 1},
        {"a": 1},
    ),
    "a property of both": (
        {
            "properties": {"o": PART},
            "anyOf": [{"properties": {"o": {"properties": {"q": {}}, "required": ["q"]}}, "required": ["o"]}],
        },
        {"o": {"p": 1, "q": 2}},
        {"o": {"p": 1}},
    ),
    "items of both": (
        {"type": "array", "items": PART, "allOf": [{"items": {"properties": {"q": {}}, "required": ["q"]}}]},
        [{"p": 1, "q": 2}],
        [{"p": 1}],
    ),
    "a property of one and further ones of another": (
        {
            "allOf": [
                {"properties": {"o": PART}},
                {"additionalProperties": {"properties": {"q": {}}, "required": ["q"]}},
            ]
        },
        {"o": {"p": 1, "q": 2}},
        {"o": {"p": 1}},
    ),
    "a property by its name and by a pattern": (
        {
            "properties": {"o": PART},
            "patternProperties": {"^o": {"properties": {"q": {}}, "required": ["q"]}},
        },
        {"o": {"p": 1, "q": 2}},
        {"o": {"p": 1}},
    ),
    "a referred property of both": (
        {
            "properties": {"o": REF_ID},
            "anyOf": [{"properties": {"o": {"type": "object", "required": ["q"]}}, "required": ["o"]}],
            **DEFS,
        },
        {"o": {"id": 1, "q": 2}},
        {"o": {"id": 1}},
    ),
}


@pytest.mark.parametrize("name", JOINED)
def test_what_is_joined_may_have_the_properties_of_all(name: str) -> None:
    given_schema, valid, invalid = JOINED[name]
    assert jsonschema_rs.is_valid(as_meant(given_schema), valid)
    assert not jsonschema_rs.is_valid(as_meant(given_schema), invalid)


@pytest.mark.parametrize("name", [name for name in JOINED if name != "a number of properties"])
def test_what_is_joined_can_be_written(name: str) -> None:
    given_schema, valid, invalid = JOINED[name]
    grammar = schema(as_meant(given_schema))
    texts = {json.dumps(valid)}
    if isinstance(valid, dict):  # the order is the schema's
        texts.add(json.dumps(dict(reversed(valid.items()))))
    assert any(follows(grammar, text) for text in texts)
    assert not follows(grammar, json.dumps(invalid))


def closed(part: dict[str, Any]) -> dict[str, Any]:
    return {"type": "object", **part, "additionalProperties": False}


CLOSED_DEFS = {"$defs": {name: closed(part) for name, part in DEFS["$defs"].items()}}


@pytest.mark.parametrize(
    ("given_schema", "meant"),
    [
        ({"type": "object", "anyOf": KINDS}, {"type": "object", "anyOf": [*map(closed, KINDS)]}),
        ({"required": ["kind"], "anyOf": KINDS}, {"required": ["kind"], "anyOf": [*map(closed, KINDS)]}),
        ({"required": ["a"], "anyOf": [A, B]}, {"required": ["a"], "anyOf": [closed(A), B]}),
        (
            {"additionalProperties": False, "anyOf": [A, B]},
            {"additionalProperties": False, "anyOf": [closed(A), closed(B)]},
        ),
        ({"anyOf": [REF_A, REF_B], **DEFS}, {"anyOf": [REF_A, REF_B], **CLOSED_DEFS}),
        ({**REF_ID, "required": ["id"], **DEFS}, {**REF_ID, "required": ["id"], **CLOSED_DEFS}),
        (
            {"required": ["a"], "anyOf": [REF_A, {"type": "null"}], **DEFS},
            {"required": ["a"], "anyOf": [REF_A, {"type": "null"}], **CLOSED_DEFS},
        ),
        (
            {"properties": {"o": REF_ID}, "anyOf": [{"required": ["o"]}], **DEFS},
            {**closed({"properties": {"o": REF_ID}}), "anyOf": [{"required": ["o"]}], **CLOSED_DEFS},
        ),
        (
            {"properties": {"o": PART}, "anyOf": [{"properties": {"b": {}}}, True]},
            {
                "type": "object",
                "properties": {"o": closed(PART)},
                "anyOf": [{"type": "object", "properties": {"b": {}}}, True],
            },
        ),
    ],
)
def test_what_nothing_else_speaks_of_is_closed(given_schema: dict[str, Any], meant: dict[str, Any]) -> None:
    assert as_meant(given_schema) == meant


NAMES = ["a", "b", "c"]
objects = st.fixed_dictionaries(
    {"properties": st.dictionaries(st.sampled_from(NAMES), st.just({}), min_size=1, max_size=2)},
    optional={
        "required": st.lists(st.sampled_from(NAMES), max_size=2, unique=True),
        "patternProperties": st.just({"^c": {"type": "integer"}}),
        "additionalProperties": st.sampled_from([{"type": "integer"}, True, False]),
        "maxProperties": st.just(2),
    },
)


def without_properties(part: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in part.items() if key != "properties"}


parts = objects | st.sampled_from([REF_A, {"$ref": "#/$defs/B", "required": ["b"]}])
wholes = st.builds(
    lambda part, alternatives, defined: {**part, "anyOf": alternatives, "$defs": defined},
    parts | objects.map(without_properties),
    st.lists(parts, min_size=1, max_size=2),
    st.fixed_dictionaries({"A": objects, "B": objects}),
)
instances = st.dictionaries(st.sampled_from(NAMES), st.integers(0, 1), min_size=1, max_size=3)


@given(wholes, instances)
def test_objects_with_listed_names_alone_stay_allowed(
    whole: dict[str, Any], instance: dict[str, int]
) -> None:
    meant = jsonschema_rs.is_valid(as_meant(whole), instance)
    for alternative in whole["anyOf"]:  # each for itself: a model is to choose one
        alone = {**whole, "anyOf": [alternative], "unevaluatedProperties": False}
        assert meant or not jsonschema_rs.is_valid(alone, instance)
    assert jsonschema_rs.is_valid(whole, instance) or not meant
