from __future__ import annotations

import json
from typing import Any

import pytest

from inference.grammar.fault import GrammarFault
from inference.grammar.schema import prepare
from inference.grammar_limits import GrammarLimits

NODE = {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]}


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (False, ""),
        ({"$ref": "#"}, "/$ref"),
        ({"allOf": [{"$ref": "#"}]}, "/allOf/0/$ref"),
        (NODE, "/properties/a/$ref"),
        ({"type": "array", "items": {"$ref": "#"}, "minItems": 1}, "/items/$ref"),
        ({"type": ["array", "object"], "minItems": 1, "items": {"$ref": "#"}, **NODE, "x": 1}, None),
        ({"type": "array", "prefixItems": [{}, {"$ref": "#"}], "minItems": 2}, "/prefixItems/1/$ref"),
        ({"anyOf": [{"$ref": "#"}, {"allOf": [{"$ref": "#"}]}]}, "/anyOf/0/$ref"),
        ({"type": "object", "required": ["a"], "properties": {"a": False}}, "/properties/a"),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {
                    "a": {"type": "object", "properties": {"b": {"$ref": "#/$defs/b"}}, "required": ["b"]},
                    "b": {"type": "array", "items": {"$ref": "#/$defs/a"}, "minItems": 1},
                },
            },
            "/$defs/b/items/$ref",
        ),
    ],
)
def test_a_schema_without_a_finite_instance_is_refused(schema: Any, pointer: str | None) -> None:
    with pytest.raises(GrammarFault) as caught:
        prepare(json.dumps(schema), GrammarLimits())
    assert pointer is None or caught.value.pointer == pointer


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {"$ref": "#"}}, "required": ["a"]},  # a number is valid, too
        {"type": "object", "properties": {"a": {"$ref": "#"}}},
        {"type": "array", "items": {"$ref": "#"}},
        {"type": ["object", "array"], "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
        {"anyOf": [{"$ref": "#"}, {"type": "null"}]},
        {"type": "object", "properties": {"a": False}},
        {"type": "array", "prefixItems": [{}, {"$ref": "#"}], "minItems": 1},
        {"enum": [{"a": 1}], **NODE},
    ],
)
def test_a_schema_with_a_way_out_passes(schema: Any) -> None:
    prepare(json.dumps(schema), GrammarLimits())


def test_recursion_is_found_behind_any_number_of_references() -> None:
    links = {
        f"a{at}": {"type": "array", "minItems": 1, "items": {"$ref": f"#/$defs/a{at + 1}"}}
        for at in range(80)
    }
    ring = {"$ref": "#/$defs/a0", "$defs": {**links, "a80": {"$ref": "#/$defs/a0"}}}
    with pytest.raises(GrammarFault, match="without end"):
        prepare(json.dumps(ring), GrammarLimits())
    prepare(json.dumps({**ring, "$defs": {**links, "a80": {"type": "null"}}}), GrammarLimits())
