from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.grammar.loosening import loosened
from inference.grammar.patterns import looks_around
from inference.grammar.schema import LIMITS

EMAIL = r"^(?!\.)(?!.*\.\.)([A-Za-z0-9_'+\-\.]*)[A-Za-z0-9_+-]@([A-Za-z0-9][A-Za-z0-9\-]*\.)+[A-Za-z]{2,}$"


AB = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "string"}}}


def one(value: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {"a": value}}


@pytest.mark.parametrize(
    ("value", "rest", "lost"),
    [
        ({"type": "array", "uniqueItems": True}, {"type": "array"}, ("uniqueItems",)),
        ({"not": {"type": "null"}, "type": "string"}, {"type": "string"}, ("not",)),
        ({"if": {"minimum": 1}, "then": {"maximum": 3}, "else": False}, {}, ("else", "if", "then")),
        ({"format": "uri-reference"}, {}, ("format",)),
        ({"format": "email", "pattern": EMAIL}, {"format": "email"}, ("pattern",)),  # zod's own
        ({"type": "object", "minProperties": 2}, {"type": "object"}, ("minProperties",)),
        ({"items": {"not": {}, "items": {"contains": {}}}}, {"items": {"items": {}}}, ("contains", "not")),
        ({"type": "object", "propertyNames": {"maxLength": 9}}, {"type": "object"}, ("propertyNames",)),
        ({"type": "object", "propertyNames": {"pattern": "(?!a)"}}, {"type": "object"}, ("propertyNames",)),
        (
            {
                "type": "object",
                "patternProperties": {"^(?!a)": {"type": "null"}},
                "additionalProperties": False,
            },
            {"type": "object", "additionalProperties": True},
            ("patternProperties",),
        ),
        (
            {"oneOf": [{"type": "string", "format": "regex"}, {"type": "string", "format": "iri"}]},
            {"anyOf": [{"type": "string"}, {"type": "string"}]},
            ("format", "oneOf"),
        ),
        (
            {"oneOf": [{"type": "integer"}, {"type": "number"}]},
            {"anyOf": [{"type": "integer"}, {"type": "number"}]},
            ("oneOf",),
        ),
        (
            {"type": "integer", "maximum": 2**63 - 1, "minimum": 0},
            {"type": "integer", "minimum": 0},
            ("maximum",),
        ),
        ({"type": "number", "minimum": 1e300}, {"type": "number"}, ("minimum",)),
        ({"type": "integer", "multipleOf": 60_000}, {"type": "integer"}, ("multipleOf",)),
        (
            {"type": "integer", "multipleOf": 9_001, "allOf": [{"multipleOf": 9_002}]},
            {"type": "integer", "allOf": [{}]},
            ("multipleOf",),
        ),
        ({"type": "string", "pattern": r"^\P{L}+$"}, {"type": "string"}, ("pattern",)),
        ({**AB, "minProperties": 1}, AB, ("minProperties",)),
        ({**AB, "required": ["a"], "maxProperties": 1}, {**AB, "required": ["a"]}, ("maxProperties",)),
        ({**AB, "if": AB, "then": {"required": ["b"]}}, AB, ("if", "then")),
        (
            {**AB, "if": AB, "then": {"properties": {"c": {}}}},
            {**AB, "additionalProperties": True},
            ("if", "then"),
        ),
        (
            {**AB, "dependentRequired": {"a": ["c"]}, "additionalProperties": False},
            {**AB, "additionalProperties": False},
            ("dependentRequired",),
        ),
        (  # of another object
            {**AB, "if": AB, "then": {"properties": {"a": {"required": ["z"], "properties": {"y": {}}}}}},
            AB,
            ("if", "then"),
        ),
        (
            {**AB, "minProperties": 2, "additionalProperties": False},
            {**AB, "additionalProperties": False},
            ("minProperties",),
        ),
        (
            {**AB, "dependencies": {"a": {"anyOf": [{"required": ["c"]}]}}},
            {**AB, "additionalProperties": True},
            ("dependencies",),
        ),
    ],
)
def test_what_no_grammar_expresses_is_left_out_and_told(value: Any, rest: Any, lost: tuple[str, ...]) -> None:
    schema = one(value)
    assert loosened(schema, LIMITS) == (one(rest), lost)
    assert schema == one(value)


@pytest.mark.parametrize(
    "value",
    [
        {"type": "string", "pattern": "^a{2}[(?=)]$", "format": "path"},
        {"type": "array", "uniqueItems": True, "maxItems": 1},
        {"type": "string", "uniqueItems": True, "contains": {}},
        {"type": "integer", "pattern": "^(?=x)"},
        {"oneOf": [{"const": "a"}, {"enum": ["b", "c"]}]},
        {"oneOf": [{"type": "integer"}, {"type": "string"}]},
        {"oneOf": [{"type": "integer"}, {"type": "number"}], "anyOf": [{}]},
        {"type": "integer", "maximum": 2**53},
        {"type": "integer", "multipleOf": 9_000},
        {"type": "object", "minProperties": 1, "maxProperties": 9},
        {**AB, "required": ["a"], "minProperties": 1},
        {**AB, "maxProperties": 2, "additionalProperties": False},
        {**AB, "minProperties": 1, "additionalProperties": False},
        {**AB, "minProperties": 1, "maxProperties": 1, "additionalProperties": False},
        {**AB, "required": ["a"], "minProperties": 2, "additionalProperties": False},
        {"oneOf": [{"const": 1}, {"const": 2}, {"const": "1"}]},
        {"type": "string", "minProperties": 3},
        {"anyOf": [{"not": {}}, {"type": "integer"}]},
        {"enum": [{"not": 1, "format": "regex"}], "default": {"uniqueItems": True}},
        {"type": "object", "propertyNames": {"type": "string"}},
        {"type": "object", "propertyNames": {"enum": ["b"]}},
        {"$ref": "#/nowhere", "not": {}},
        {"type": 5, "not": {}},
        {"not": 7},
    ],
)
def test_what_a_grammar_expresses_or_is_wrong_stays(value: Any) -> None:
    assert loosened(one(value), LIMITS) == (one(value), ())


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        (EMAIL, True),
        ("a(?=b)", True),
        ("(?<!b)a", True),
        (r"(a)\1", True),
        (r"(?<n>a)\k<n>", True),
        (r"\bword\b", True),
        (r"(?:a)(?<n>b)(?i:c)", False),
        (r"\(?=", False),
        (r"\\b", False),
        (r"[\b(?=)]", False),
    ],
)
def test_expressions_that_look_around_are_known(pattern: str, found: bool) -> None:
    assert looks_around(pattern) is found


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["string", "a", "object", "(?=a)"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "type",
                    "not",
                    "if",
                    "properties",
                    "items",
                    "pattern",
                    "format",
                    "$ref",
                    "anyOf",
                    "uniqueItems",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@given(st.dictionaries(st.sampled_from(["properties", "not", "items", "anyOf", "pattern"]), JSON))
def test_nothing_is_ever_raised_or_changed_in_place(schema: dict[str, Any]) -> None:
    before = repr(schema)
    rest, _ = loosened(schema, LIMITS)
    assert (repr(schema), loosened(rest, LIMITS)) == (before, (rest, ()))
