from __future__ import annotations

import json
from typing import Any

import pytest

from inference.grammar.fault import GrammarFault
from inference.grammar.schema import LIMITS, prepare

NUMBERS: dict[str, Any] = {"type": "object", "additionalProperties": {"type": "integer"}}
EITHER = {"$defs": {"Either": {"title": "Either", "enum": ["a", "b"], "type": "string"}}}


def compiled(schema: dict[str, Any]) -> dict[str, Any]:
    made: dict[str, Any] = json.loads(prepare(json.dumps(schema), LIMITS)[1])
    return {key: value for key, value in made.items() if key not in ("$schema", "x-guidance", "$defs")}


@pytest.mark.parametrize(
    "names",
    [
        True,
        {},
        {"type": "string"},
        {"description": "which"},
        {"type": ["string", "null"]},
        {"format": "slug"},
    ],
)
def test_names_of_any_text_forbid_nothing(names: Any) -> None:
    assert compiled({**NUMBERS, "propertyNames": names}) == NUMBERS


@pytest.mark.parametrize(
    "names",
    [{"enum": ["a", "b"]}, {"type": "string", "enum": ["a", "b"]}, {"$ref": "#/$defs/Either"}],
)
def test_names_that_are_listed_are_properties(names: Any) -> None:
    number = {"type": "integer"}
    assert compiled({**NUMBERS, **EITHER, "propertyNames": names}) == {
        "type": "object",
        "properties": {"a": number, "b": number},
        "additionalProperties": False,
    }


def test_names_may_be_any_text_by_a_reference() -> None:
    named = {**NUMBERS, "$defs": {"Text": {"type": "string"}}, "propertyNames": {"$ref": "#/$defs/Text"}}
    assert compiled(named) == NUMBERS


@pytest.mark.parametrize("part", ["additionalProperties", "propertyNames"])
def test_what_references_lead_to_is_not_moved(part: str) -> None:
    maps = {**NUMBERS, "propertyNames": {"type": "string", "pattern": "^k"}}
    schema = {"type": "object", "properties": {"m": maps, "n": {"$ref": f"#/properties/m/{part}"}}}
    with pytest.raises(GrammarFault, match="`propertyNames` is not supported"):
        compiled(schema)


def test_a_list_of_names_may_not_make_a_small_schema_a_large_one() -> None:
    names = [f"n{number}" for number in range(3000)]
    large = {"enum": [f"v{number}" for number in range(9000)]}
    with pytest.raises(GrammarFault, match="`propertyNames` is not supported"):
        compiled({"type": "object", "propertyNames": {"enum": names}, "additionalProperties": large})
    few: dict[str, Any] = {"type": "object", "propertyNames": {"enum": names[:200]}}
    with pytest.raises(GrammarFault, match="`propertyNames` is not supported"):
        compiled({**few, "additionalProperties": {**few, "additionalProperties": {"type": "null"}}})


def test_what_is_wrong_is_named_where_it_was_written() -> None:
    values = {"type": "array", "uniqueItems": True}
    maps = {"type": "object", "propertyNames": {"enum": ["a"]}, "additionalProperties": values}
    with pytest.raises(GrammarFault) as fault:
        compiled({"type": "object", "properties": {"h": maps}})
    assert "/properties/h/additionalProperties/uniqueItems" in fault.value.pointer


def test_properties_keep_their_own_schemas_if_their_names_are_among_those() -> None:
    own = {"a": {"type": "string"}, "c": {"type": "null"}}
    schema = {"type": "object", "properties": own, "propertyNames": {"enum": ["a", "b"]}}
    assert compiled(schema)["properties"] == {"a": {"type": "string"}, "b": True}
    assert compiled({**schema, "additionalProperties": False})["properties"] == {"a": {"type": "string"}}
    assert compiled({**NUMBERS, "propertyNames": {"const": "x"}})["properties"] == {"x": {"type": "integer"}}


def test_names_that_match_an_expression_are_patterns() -> None:
    assert compiled({**NUMBERS, "propertyNames": {"pattern": "^x_"}}) == {
        "type": "object",
        "patternProperties": {"^x_": {"type": "integer"}},
        "additionalProperties": False,
    }


@pytest.mark.parametrize(
    "schema",
    [
        {"propertyNames": {"maxLength": 3}},
        {"propertyNames": {"pattern": "a", "enum": ["a"]}},
        {"propertyNames": {"enum": ["a"]}, "patternProperties": {"b": {}}},
        {"propertyNames": {"pattern": "a"}, "properties": {"b": {}}},
        {"propertyNames": {"enum": ["a", 1]}},
        {"propertyNames": {"type": "null"}},
        {"propertyNames": False},
    ],
)
def test_other_names_are_refused(schema: dict[str, Any]) -> None:
    with pytest.raises(GrammarFault, match="`propertyNames` is not supported"):
        compiled({"type": "object", **schema})


def test_before_draft_6_it_is_a_word_without_meaning() -> None:
    old = {"$schema": "http://json-schema.org/draft-04/schema#", **NUMBERS, "propertyNames": {"enum": ["a"]}}
    assert compiled(old) == NUMBERS
