from __future__ import annotations

from typing import Any

import pytest

from inference.errors import Member
from inference.grammar.complaints import plain
from inference.grammar.fault import GrammarFault, excerpt, join
from tests.unit.inference.grammar.vocabularies import lark, schema

FINE: dict[str, Any] = {"oneOf": [{"type": "string"}, {"type": "null"}], "patternProperties": {"^a$": {}}}


@pytest.mark.parametrize(
    ("value", "pointer", "words"),
    [
        ({"oneOf": [{"minLength": 1}, {"maxLength": 3}]}, "/oneOf", "are not told apart"),
        (
            {"properties": {"a": FINE, "b": {"items": {"oneOf": [{"minimum": 1}, {"minimum": 2}]}}}},
            "/properties/b/items/oneOf",
            "are not told apart",
        ),
        (
            {"properties": {"a": FINE, "b": {"type": "object", "patternProperties": {"^a": {}, "^ab": {}}}}},
            "/properties/b/patternProperties",
            "several of the `patternProperties`",
        ),
        (
            {"items": {"type": "object", "properties": {"a": {}, "b": {}}, "maxProperties": 1}},
            "/items/maxProperties",
            "only where each of the `properties` is required",
        ),
        (
            {"properties": {"a": {"pattern": "^a$"}, "b": {"pattern": "^(?!a)"}}},
            "/properties/b/pattern",
            "regular expression is not supported: regex parse error, look-around",
        ),
        (
            {"properties": {"a": {"pattern": "^a$"}, "b": {"pattern": r"\bfoo"}}},
            "/properties/b/pattern",
            "regular expression is not supported: it has a word boundary. Write it without look-around, "
            r"back-references and word boundaries (`\b`, `\B`)",
        ),
        (
            {"patternProperties": {"(": {}}},
            "/patternProperties",
            "regular expression is not valid: regex parse",
        ),
        ({"type": "number", "multipleOf": 1.234567890123456}, "/multipleOf", "too many remainders"),
        ({"type": "string", "minLength": 3, "maxLength": 2}, "", "nothing is valid here: Unsatisfiable"),
        ({"type": "string", "const": 1}, "", "incompatible types"),
        (
            {
                "$ref": "#/$defs/a",
                "$defs": {"a": {"properties": {"b": {"$ref": "#/$defs/a", "minLength": 1}}}},
            },
            "/$defs/a/properties/b/$ref",
            "must stand alone",
        ),
        ({"properties": {f"p{at}": {} for at in range(3_900)}}, "", "takes more work than a grammar may"),
    ],
)
def test_a_complaint_of_the_compiler_is_told_with_its_place(value: Any, pointer: str, words: str) -> None:
    with pytest.raises(GrammarFault) as caught:
        schema(value)
    assert words in caught.value.reason
    assert caught.value.pointer == pointer


@pytest.mark.parametrize(
    ("schema", "pointer"),
    [
        (
            '{"properties": {"a": {"pattern": "(?<=a)b"}, "b": {"pattern": "b"}}}',
            "/properties/a/pattern",
        ),
        ('{"items": {"oneOf": [{"minLength": 1}, {"maxLength": 3}]}}', "/items/oneOf"),
        ('{"type": "string", "minLength": 3, "maxLength": 2}', ""),
    ],
)
def test_a_schema_within_a_grammar_is_named_by_the_comment_before_it(schema: str, pointer: str) -> None:
    rules = 'start: "x" first second\n// 0\nfirst: %json {}\n// 1\nsecond: %json '
    with pytest.raises(GrammarFault) as caught:
        lark(rules + schema)
    assert (caught.value.label, caught.value.pointer) == ("1", pointer)


def test_a_schema_without_a_comment_is_the_members_and_a_rule_has_no_place() -> None:
    with pytest.raises(GrammarFault) as caught:
        lark('start: %json {"oneOf": [{"minLength": 1}, {"maxLength": 3}]}')
    assert (caught.value.label, caught.value.pointer) == ("", "/oneOf")
    with pytest.raises(GrammarFault) as caught:
        lark("start: /(/")
    assert caught.value.pointer == ""


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (
            "at 2(8): failed to compile JSON schema: schema too large\n   1 | %llguidance\n",
            "schema too large",
        ),
        ("lexer error: too many states: 9 >= 9\n<non-verbose/>", "too many states: 9 >= 9"),
        ("NoExtensionBias<non-verbose/>", "NoExtensionBias"),
        ("panic: called `unwrap` at /root/x.rs\n  0: <unknown>", "an internal error"),
        (
            'invalid regex "(": regex parse error:\n    (\n    ^\nerror: unclosed group',
            "regex parse error, unclosed group",
        ),
        (
            'invalid regex "\\\\b\\"x" (in regex): lookarounds not supported yet; WordAscii in regex /\\b"x/',
            "it has a word boundary",
        ),
        (
            'invalid regex "a^" (in r): lookarounds not supported yet; Start in regex /a^/',
            "it has an anchor inside",
        ),
        ('invalid regex "a\\"b" (in regex): it is odd', "it is odd"),
        ("x" * 300, "x" * 200 + "..."),
    ],
)
def test_messages_show_neither_grammar_nor_traces(message: str, told: str) -> None:
    assert plain(message) == told


def test_pointers_escape_what_divides_them() -> None:
    assert join("", "a/b", "c~d", 0) == "/a~1b/c~0d/0"
    assert excerpt("a" * 200) == "a" * 200


def test_a_refusal_shows_no_more_than_the_beginning_of_a_long_place() -> None:
    text = str(GrammarFault("why", "/" + "n" * 10_000).refusal(Member("grammar.value")))
    assert len(text) < 300
    assert text.endswith("...: why")
