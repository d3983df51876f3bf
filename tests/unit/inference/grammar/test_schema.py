from __future__ import annotations

import json
from typing import Any

import pytest

from inference.errors import GrammarRefused
from inference.grammar.fault import GrammarFault
from inference.grammar.schema import check_schema, embedded_json, prepare
from inference.grammar_limits import GrammarLimits
from tests.unit.inference.grammar.vocabularies import follows, lark, schema

PERSON = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "age": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
OPEN = {"type": "object", "properties": {"foo": {"type": "integer"}}}


@pytest.mark.parametrize(
    "text",
    ['{"name":"a","age":1}', '{"name": "a", "age": 1}', '{ "name" : "a" , "age" : 1 }', '{"name":"a"}'],
)
def test_compact_and_spaced_json_can_be_written(text: str) -> None:
    assert follows(schema(PERSON), text)


@pytest.mark.parametrize(
    "text",
    [
        ' {"name":"a"}',
        '{"name":"a"} ',
        '{"name":  "a"}',
        '{\n"name":"a"}',
        '{"name":\t"a"}',
        '{  "name":"a"}',
    ],
)
def test_white_space_is_one_space_at_most(text: str) -> None:
    assert not follows(schema(PERSON), text)


def test_properties_come_in_the_order_of_the_schema_and_others_behind_them() -> None:
    grammar = schema({"type": "object", "properties": {"b": {}, "a": {}}})
    assert follows(grammar, '{"b":1,"a":2,"0":3}')
    assert not follows(grammar, '{"a":2,"b":1}')
    assert not follows(grammar, '{"0":3,"b":1}')


@pytest.mark.parametrize("any_value", [True, {}, {"title": "anything"}])
def test_a_schema_without_constraints_is_any_value(any_value: Any) -> None:
    for text in ("null", "-1.5e3", '"x"', '[1, {"a": []}]', "{}"):
        assert follows(schema(any_value), text)


def test_formats_are_enforced() -> None:
    grammar = schema({"type": "string", "format": "date"})
    assert follows(grammar, '"2025-02-28"')
    assert not follows(grammar, '"2025-02-30"')


def test_names_beside_those_of_an_object_cannot_be_spelled_with_escapes() -> None:
    assert not follows(schema(OPEN), r'{"f\u006fo":"bar"}')
    assert follows(schema(OPEN), '{"foo2":"bar"}')


def test_control_characters_can_be_written_where_no_object_is_open() -> None:
    assert follows(schema(PERSON), r'{"name":"\u001b[1m"}')
    assert follows(schema({"const": "a\u0000b"}), r'"a\u0000b"')
    assert not follows(schema({"const": "a\u0000b"}), '"ab"')


@pytest.mark.parametrize(
    ("value", "pointer"),
    [
        ({"properties": {"a": {"const": "x\x01"}}}, "/properties/a/const"),
        ({"properties": {"a": {"enum": ["x", ["\x7f"]]}}}, "/properties/a/enum/1/0"),
        ({"properties": {"a": {"pattern": "^a\\x00b$"}}}, "/properties/a/pattern"),
        ({"patternProperties": {"^\x02": {}}}, "/patternProperties/^\x02"),
    ],
)
def test_a_control_character_that_an_open_object_rules_out_is_refused(value: Any, pointer: str) -> None:
    with pytest.raises(GrammarFault, match="control characters") as caught:
        prepare(json.dumps(value), GrammarLimits())
    assert caught.value.pointer == pointer


@pytest.mark.parametrize("pattern", ["^[\\x20-\\x7e]+$", "^[^\\x00]+$", "^[\\x00-\\x1f]?a$", "\\t\\n"])
def test_patterns_with_ranges_of_control_characters_pass(pattern: str) -> None:
    prepare(json.dumps({"properties": {"a": {"pattern": pattern}}}), GrammarLimits())


def test_references_are_followed_by_pointer_escape_anchor_and_identifier() -> None:
    grammar = schema(
        {
            "$id": "https://example.com/s",
            "prefixItems": [
                {"$ref": "#/$defs/a~1b%20c"},
                {"$ref": "#named"},
                {"$ref": "https://example.com/s#/$defs/named"},
            ],
            "minItems": 3,
            "type": "array",
            "items": False,
            "$defs": {"a/b c": {"const": 1}, "named": {"$anchor": "named", "const": 2}},
        }
    )
    assert follows(grammar, "[1,2,2]")
    assert not follows(grammar, "[2,2,2]")


def test_a_schema_may_contain_itself() -> None:
    grammar = schema(
        {
            "type": "object",
            "properties": {"next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}},
            "required": ["next"],
            "additionalProperties": False,
        }
    )
    assert follows(grammar, '{"next":{"next":{"next":null}}}')
    assert not follows(grammar, '{"next":{}}')


def test_a_reference_to_a_property_before_it_is_met_keeps_the_order() -> None:
    grammar = schema(
        {"type": "object", "properties": {"a": {"$ref": "#/properties/b"}, "b": {"type": "null"}}}
    )
    assert follows(grammar, '{"a":null,"b":null}')
    assert not follows(grammar, '{"b":null,"a":null}')


@pytest.mark.parametrize(
    ("value", "good", "bad"),
    [
        ({"type": "array", "items": [{"const": 1}], "additionalItems": False}, "[1]", "[1,1]"),
        ({"type": "integer", "minimum": 1, "exclusiveMinimum": True}, "2", "1"),
    ],
)
def test_a_schema_of_an_older_draft_is_taken_for_what_it_is(value: Any, good: str, bad: str) -> None:
    assert follows(schema(value), good)
    assert not follows(schema(value), bad)


@pytest.mark.parametrize(
    "value",
    [
        {"uniqueItems": False},
        {"not": False},
        {"if": {"type": "string"}},
        {"then": False},
        {"minContains": 3},
        {"unevaluatedProperties": True},
        {"propertyNames": {}},
        {"dependentRequired": {"a": []}},
        {"$schema": "http://json-schema.org/draft-07/schema#", "unevaluatedItems": False},
        {"format": "int32", "type": "integer"},
        {"x-order": 1, "nullable": True, "description": "d", "examples": [1]},
        {"$defs": {"unused": {"not": {}}}},
        {"properties": {"a": {}, "b": {}}, "required": ["a"], "minProperties": 1},
        {"properties": {"a": {}}, "additionalProperties": False, "maxProperties": 1},
    ],
)
def test_keywords_that_forbid_nothing_are_left_out(value: Any) -> None:
    assert follows(schema(value), "1")


def test_a_clients_options_for_the_compiler_are_ignored() -> None:
    options = {"whitespace_flexible": True, "lenient": True, "item_separator": "x"}
    assert not follows(schema({"x-guidance": options, **PERSON}), '{"name":\n"a"}')
    with pytest.raises(GrammarFault):
        schema({"x-guidance": options, "not": {"type": "null"}})


def test_counts_may_be_written_as_floats_or_be_larger_than_any_text() -> None:
    assert not follows(schema({"type": "string", "maxLength": 2.0}), '"abc"')
    assert follows(schema({"type": "array", "maxItems": 10**18}), "[1,2]")


def test_embedded_json_is_a_rule_of_a_bigger_grammar() -> None:
    grammar = lark(f'start: "<" args ">"\nargs: %json {embedded_json(PERSON)}')
    assert follows(grammar, '<{"name": "a"}>')
    assert not follows(grammar, '<{"age": 1}>')


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (
            {"properties": {"a/b": {"uniqueItems": True}}},
            "at /properties/a~1b/uniqueItems: `uniqueItems` is not",
        ),
        ({"not": {"type": "null"}}, "at /not: `not` is not supported. Say what is allowed"),
        (
            {"if": {}, "then": {"required": ["a"]}},
            "at /if: `if` is not supported. Write one schema for each case",
        ),
        ({"$ref": "https://example.com/s"}, "at /$ref: it refers to 'https://example.com/s', outside"),
        ({"$ref": "#/$defs/no"}, "at /$ref: it refers to '#/$defs/no', where this document has no schema"),
        ({"items": {"$ref": "#no"}}, "at /items/$ref: it refers to '#no', where"),
        ({"$defs": {"a": {"$id": "x", "$defs": {"b": {}}}}, "$ref": "#/$defs/a/$defs/b"}, "at /$ref"),
        ({"items": {"$id": "x", "items": {"$ref": "#/a"}}, "a": {}}, "at /items/$id: `$id` below the top"),
        ({"properties": {"a": {"type": "strng"}}}, "at /properties/a/type: it is no JSON Schema: "),
        ({"properties": {"a": 1}}, "at /properties/a: it is no JSON Schema: 1 is not of types"),
        ({"required": "a"}, "at /required: it is no JSON Schema"),
        ({"format": "idn-email"}, "at /format: the format 'idn-email' is not supported. Use one of date,"),
        ({"minProperties": 2}, "at /minProperties: `minProperties` counts names that are not listed"),
        (
            {"patternProperties": {f"^{i}$": {} for i in range(33)}},
            "must have <= 32 `patternProperties`. Given: 33",
        ),
        (
            {"pattern": "a" * 8193},
            "at /pattern: a regular expression must have <= 8192 characters. Given: 8193",
        ),
        (3, "a JSON Schema is an object or a boolean. Given: 3"),
        ({"const": float("nan")}, "it is not JSON"),
        ({"const": "\ud800"}, "it holds half a surrogate pair"),
        ({"description": "x" * 140_000}, "must have <= 131072 bytes (`max_grammar_size`). Given: 14"),
        ({"enum": list(range(20_001))}, "must have <= 20000 JSON values"),
        ({"prefixItems": [{}] * 4_001}, "it must have <= 4000 schemas within it"),
        (
            {"properties": {"x" * 60_000: {"prefixItems": [{}] * 1_500}}},
            "the names around its schemas are too long",
        ),
        ({"$ref": "#/anyOf/" + "1" * 5_000, "anyOf": [{}]}, "where this document has no schema"),
        ({"$ref": "#/anyOf/²", "anyOf": [{}] * 3}, "where this document has no schema"),
    ],
)
def test_a_refusal_names_member_place_and_what_to_do(value: Any, words: str) -> None:
    with pytest.raises(GrammarRefused) as caught:
        check_schema(value, "tools[0].function.parameters")
    assert str(caught.value).startswith("grammar is not valid: `tools[0].function.parameters`")
    assert words in str(caught.value)


def test_nesting_is_limited_by_braces_and_by_references() -> None:
    limits = GrammarLimits()
    deep: Any = {}
    for _ in range(limits.nesting):
        deep = {"items": deep}
    schema(deep)
    with pytest.raises(GrammarRefused, match="nested <= 64 deep"):
        check_schema({"items": deep}, "m")
    with pytest.raises(GrammarRefused, match="nested <= 64 deep"):
        check_schema({"const": json.loads("[" * 900 + "]" * 900)}, "m")
    chain = {f"a{at}": {"$ref": f"#/$defs/a{at + 1}"} for at in range(limits.chain)}
    schema({"$ref": "#/$defs/a1", "$defs": {**chain, f"a{limits.chain}": {}}})
    with pytest.raises(GrammarRefused, match="<= 192 within each other"):
        check_schema({"$ref": "#/$defs/a0", "$defs": {**chain, f"a{limits.chain}": {}}}, "m")


@pytest.mark.parametrize(
    "value",
    [
        {"properties": {"u": {"const": "c", "examples": "c"}}},
        {"properties": {"n": {"minimum": 0, "exclusiveMinimum": True}, "u": {"const": "c"}}},
        {"prefixItems": []},
        {"$ref": 1},
        {"prefixItems": False},
        {"additionalItems": {"minItems": {}}},
        {"items": {"contains": False, "$ref": {}}},
        {"const": 123456789012345678901234567890.0},
    ],
)
def test_a_malformed_schema_is_refused_and_never_half_read(value: Any) -> None:
    with pytest.raises(GrammarFault):
        schema(value)


def test_a_schema_of_an_older_draft_is_read_as_such() -> None:
    grammar = schema({"type": "integer", "minimum": 0, "exclusiveMinimum": True, "maximum": 9})
    assert follows(grammar, "1")
    assert not follows(grammar, "0")


@pytest.mark.parametrize(
    ("value", "good", "bad"),
    [
        ({"anyOf": [{"not": {}}, {"type": "integer"}]}, "1", '"x"'),
        ({"properties": {"a": {"not": {}}, "b": {}}, "additionalProperties": False}, '{"b": 1}', '{"a": 1}'),
        ({"type": "array", "items": {"not": True, "title": "never"}}, "[]", "[1]"),
    ],
)
def test_zods_spelling_of_false_is_false(value: Any, good: str, bad: str) -> None:
    assert (follows(schema(value), good), follows(schema(value), bad)) == (True, False)


@pytest.mark.parametrize(
    "value", [{"not": {}}, {"required": ["a"], "properties": {"a": {"not": {}}}, "type": "object"}]
)
def test_nothing_follows_false_in_either_spelling(value: Any) -> None:
    with pytest.raises(GrammarFault, match="nothing is valid here"):
        schema(value)
