from __future__ import annotations

from typing import Any

import jsonschema_rs
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.grammar.meaning import as_meant

CLOSED = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
OPEN: dict[str, Any] = {"properties": {"a": {}}}

KEPT: dict[str, dict[str, Any]] = {
    "no properties": {"type": "object"},
    "a word about others": {"type": "object", "properties": {"a": {}}, "additionalProperties": True},
    "others by pattern": {"type": "object", "properties": {"a": {}}, "patternProperties": {"^b": {}}},
    "a required one that isn't listed": {"type": "object", "properties": {"a": {}}, "required": ["b"]},
    "a broken list": {"type": "object", "properties": {"a": {}}, "required": [["a"]]},
    "joined by allOf": {"allOf": [{"type": "object", "properties": {"a": {}}}, {"required": ["b"]}]},
    "one of two that meet": {"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object"}]},
    "an object or a number": {"oneOf": [{"properties": {"a": {}}}, {"type": "integer"}]},
    "joined by a reference": {
        "$defs": {"d": {"type": "object", "properties": {"a": {}}}},
        "type": "object",
        "$ref": "#/$defs/d",
        "properties": {"b": {}},
    },
    "a definition that is joined": {
        "$defs": {"d": {"type": "object", "properties": {"a": {}}}},
        "allOf": [{"$ref": "#/$defs/d"}, {"required": ["b"]}],
    },
}


@pytest.mark.parametrize(
    ("schema", "meant"),
    [
        (OPEN, CLOSED),
        ({"type": "array", "items": OPEN}, {"type": "array", "items": CLOSED}),
        ({"anyOf": [OPEN, {"type": "null"}]}, {"anyOf": [CLOSED, {"type": "null"}]}),
        (
            {"oneOf": [{"properties": {"a": {}}}, {"type": "object"}]},
            {"oneOf": [{"type": "object", "properties": {"a": {}}}, {"type": "object"}]},
        ),
        ({"oneOf": [{"type": "object", **OPEN}, {"type": "null"}]}, {"oneOf": [CLOSED, {"type": "null"}]}),
        ({**OPEN, "dependencies": {}}, {**CLOSED, "dependencies": {}}),
        ({"$ref": "#/$defs/d", "$defs": {"d": OPEN}}, {"$ref": "#/$defs/d", "$defs": {"d": CLOSED}}),
        (
            {"properties": {"a": OPEN, "type": {"enum": ["a"]}}},
            {
                "type": "object",
                "properties": {"a": CLOSED, "type": {"enum": ["a"]}},
                "additionalProperties": False,
            },
        ),
    ],
)
def test_objects_have_the_properties_that_they_list(schema: dict[str, Any], meant: dict[str, Any]) -> None:
    assert as_meant(schema) == meant


@pytest.mark.parametrize("name", KEPT)
def test_what_speaks_of_other_properties_stays_open(name: str) -> None:
    assert as_meant(KEPT[name]) == KEPT[name]


def test_properties_stay_in_their_order() -> None:
    assert [*as_meant({"properties": {"b": {}, "a": {}}})["properties"]] == ["b", "a"]


def test_a_schema_that_is_nested_without_end_is_left_to_the_compiler() -> None:
    schema: dict[str, Any] = {}
    for _ in range(5000):
        schema = {"properties": {"a": schema}}
    assert as_meant(schema) is not schema
    assert as_meant(schema).keys() == {"properties"}


names = st.sampled_from(["a", "b"])
leaves: st.SearchStrategy[dict[str, Any]] = st.sampled_from([{}, {"type": "integer"}, {"const": 1}])


def larger(inner: st.SearchStrategy[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """Return schemas around others."""
    listed = st.dictionaries(names, inner, max_size=2)
    several = st.lists(inner, min_size=1, max_size=2)
    return st.one_of(
        st.fixed_dictionaries({"properties": listed}, optional={"required": st.lists(names, max_size=1)}),
        st.fixed_dictionaries({"items": inner}),
        several.map(lambda schemas: {"anyOf": schemas}),
        several.map(lambda schemas: {"oneOf": schemas}),
        several.map(lambda schemas: {"allOf": schemas}),
        inner.map(lambda schema: {"not": schema}),
        st.tuples(inner, listed).map(lambda pair: {"anyOf": [pair[0]], "properties": pair[1]}),
        st.just({"$ref": "#/$defs/d"}),
    )


schemas = st.tuples(
    st.recursive(leaves, larger, max_leaves=6), st.recursive(leaves, larger, max_leaves=3)
).map(lambda pair: {**pair[0], "$defs": {"d": pair[1]}})
data = st.recursive(
    st.sampled_from([1, 2, None]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(names, inner, max_size=2),
    max_leaves=5,
)


@given(schemas, data)
def test_what_is_meant_is_valid_by_the_letter(schema: dict[str, Any], instance: Any) -> None:
    try:
        meant, letter = (jsonschema_rs.validator_for(each) for each in (as_meant(schema), schema))
    except (jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError):
        return
    if meant.is_valid(instance):
        assert letter.is_valid(instance)
