"""Which parameters are written as the texts they are, and what such a text has to be."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.grammar.regex import searched
from inference.tools.texts import FORMS, SHORTEST, Text, Values
from inference.types import Grammar, GrammarKind
from tests.unit.inference_tools.grammars import accepts, compiled

END = "\n</parameter>\n"
STRING, NULL = {"type": "string"}, {"type": "null"}


def text_of(schema: Any, **root: Any) -> Text | None:
    return Values({"properties": {"a": schema}, **root}, END).text("a")


@pytest.mark.parametrize(
    ("schema", "or_null"),
    [
        (STRING, False),
        ({"type": ["string"], "description": "A", "default": "b"}, False),
        ({"type": ["string", "null"]}, True),
        ({"anyOf": [STRING, NULL], "title": "A"}, True),
        ({"oneOf": [NULL, STRING]}, True),
        ({"allOf": [STRING]}, False),
        ({"$ref": "#/$defs/s"}, False),
        ({"anyOf": [{"$ref": "#/$defs/s"}, NULL]}, True),
        ({"enum": ["a", "b"]}, False),
        ({"enum": ["a", None]}, True),
        ({"type": "string", "enum": ["a", None]}, False),
        ({"const": "a"}, False),
        ({"const": "a", "enum": ["a", "b"]}, False),
        ({"const": "c", "enum": ["a", "b"]}, None),  # nothing: JSON's grammar says so
        ({"enum": ["a", "bcd"], "maxLength": 2}, False),
        ({"enum": ["abc", "bcd"], "maxLength": 2}, None),
        ({"enum": ["a"], "pattern": "b"}, None),
        ({"type": "string", "minLength": 3, "maxLength": 2}, None),
        ({"type": "string", "format": "date", "maxLength": 9}, None),
        ({"type": "string", "format": "date", "maxLength": 10}, False),
        ({"type": "string", "format": "uri", "minLength": 1, "maxLength": 2_083}, False),
        ({"type": "string", "format": "date", "pattern": "a"}, None),
        ({"type": "string", "format": "date"}, False),
        ({"type": "string", "pattern": "^a|b"}, None),  # of which no one expression is made
        ({"type": "string", "pattern": "(?=a)"}, False),  # which no grammar has, JSON's neither
        ({"type": "string", "format": "password"}, False),
        ({"type": "string", "format": "ipv6"}, None),
        ({"enum": ["a", 1]}, None),
        ({"enum": [None]}, None),
        ({"enum": [f"a{END}"]}, None),
        ({"enum": ["a\n</parameter>"]}, None),  # with the end behind it, the end would be found earlier
        ({"type": ["string", "integer"]}, None),
        ({"anyOf": [STRING, {"type": "integer"}]}, None),
        ({"anyOf": [STRING, STRING]}, None),
        ({"allOf": [STRING, {"pattern": "a"}]}, None),
        ({"type": "string", "not": {"const": "a"}}, False),
        ({"$ref": "#/$defs/loop"}, None),
        ({"$ref": "https://example.com"}, None),
        ({}, None),
        (True, None),
        ({"minLength": 1}, None),
    ],
)
def test_a_parameter_is_a_text_where_it_can_be_nothing_else(schema: Any, or_null: bool | None) -> None:
    found = text_of(schema, **{"$defs": {"s": STRING, "loop": {"$ref": "#/$defs/loop"}}})
    assert (None if found is None else found.or_null) == or_null


@pytest.mark.parametrize(
    ("root", "is_text"),
    [
        ({"anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, True),
        ({"anyOf": [{"properties": {"a": STRING}}, {"properties": {"b": STRING}}]}, True),
        ({"anyOf": [{"properties": {"a": {"const": "x"}}}, {"properties": {"b": STRING}}]}, False),
        ({"patternProperties": {"^a": {"minLength": 3}}}, False),
        ({"allOf": [{"additionalProperties": {"minLength": 3}}]}, False),
        ({"additionalProperties": {"type": "integer"}}, True),
    ],
)
def test_what_several_schemas_say_of_a_parameter_is_left_to_json(root: dict[str, Any], is_text: bool) -> None:
    assert (text_of(STRING, **root) is not None) == is_text


def test_others_than_the_listed_are_texts_where_all_of_them_are() -> None:
    assert Values({"additionalProperties": STRING}, END).text("any") == Text()
    assert Values({"properties": {"a": STRING}}, END).text("any") is None


def expressions_of(schema: Any) -> tuple[str, ...]:
    found = text_of(schema)
    assert found is not None
    return found.expressions


def test_what_a_schema_lists_is_held_to_all_else_that_it_says() -> None:
    listed = {"enum": ["a", "bcd", "e"]}
    assert expressions_of(listed | {"maxLength": 2}) == ("(?:a|e)",)
    assert expressions_of(listed | {"minLength": 2}) == ("(?:bcd)",)
    assert expressions_of(listed | {"const": "e"}) == ("(?:e)",)


def test_the_shortest_texts_of_formats_are_of_their_format() -> None:
    for name, text in zip(
        SHORTEST,
        [
            *("2024-01-01", "00:00:00Z", "2024-01-01T00:00:00Z", "0" * 8 + "-0000" * 3 + "-" + "0" * 12),
            *("0.0.0.0", "a", "a@b", "a:b"),
        ],
        strict=True,
    ):
        assert len(text) == SHORTEST[name]
        assert re.fullmatch(FORMS[name], text)


FORMATTED = [
    ("date", "2024-02-29", True),
    ("date", "2023-02-29", False),
    ("date", "1900-02-29", False),
    ("date", "2000-02-29", True),
    ("date", "2024-04-31", False),
    ("date-time", "2024-12-31T23:59:59.5+02:00", True),
    ("date-time", "2024-12-31 23:59:59Z", False),
    ("time", "24:00:00Z", False),
    ("uuid", "f81d4fae-7dec-11d0-a765-00a0c91e6bf6", True),
    ("uuid", "f81d4fae7dec11d0a76500a0c91e6bf6", False),
    ("ipv4", "255.0.10.199", True),
    ("ipv4", "256.0.10.199", False),
    ("hostname", "-a.example", False),
    ("email", "a.b+c@example.org", True),
    ("email", "a@b@c", False),
    ("email", "o'neil@b.co", True),
    ("email", "a&b/`{c}|d^e@c.d", True),
    ("email", "a..b@c.d", False),
    ("email", "a b@c.d", False),
    ("date-time", "2024-12-31t23:59:59z", True),
    ("uri", "file:///x", True),
    ("uri", "mailto:a@b.c", True),
    ("uri", "urn:isbn:1", True),
    ("uri", "data:text/plain,hi", True),
    ("uri", "postgresql://user:pw@host/db", True),
    ("uri", "http://my_service:8000/x", True),
    ("uri", "http://[::1]/", True),
    ("uri", "http://u@[fe80::1]:8000?a=[b", False),
    ("uri", "http://u@[fe80::1]:8000?a=%5B#b", True),
    ("uri", "a:<b>", False),
    ("uri", "a:%zz", False),
    ("uri", "a:#b#c", False),
    ("uri", "https://example.org:8080/a/b?c=d&e=/#f", True),
    ("uri", "example.org", False),
    ("uri", "https://a b", False),
]


@pytest.mark.parametrize(("name", "text", "is_valid"), FORMATTED)
def test_formats_of_texts(name: str, text: str, is_valid: bool) -> None:
    grammar = compiled(
        Grammar(kind=GrammarKind.LARK, source=f"start: TEXT\nTEXT: /{FORMS[name]}/\n", member="m")
    )
    assert accepts(grammar, [text]) == is_valid


PATTERNS = [
    "a",
    "^a",
    "a$",
    "^a$",
    "^[^a]*$",
    "a|b",
    "^(a|b)$",
    r"\d-\d",
    r"[\w/]+/",
    "^$",
    "(a|b)c",
    r"\^",
    r"a\$",
]


@settings(max_examples=80, deadline=None)
@given(st.sampled_from(PATTERNS), st.text("ab/-0^$\nc", max_size=4))
def test_a_pattern_is_searched_for_as_json_schema_says(pattern: str, text: str) -> None:
    expression = searched(pattern)
    assert expression is not None
    source = f'start: TEXT\nTEXT: /{expression}/ "!"\n'
    strict = re.compile(
        pattern.removesuffix("$") + r"\Z" if pattern.endswith("$") and pattern[-2:] != r"\$" else pattern
    )
    grammar = compiled(Grammar(kind=GrammarKind.LARK, source=source, member="m"))
    assert accepts(grammar, [text, "!"]) == bool(strict.search(text))


@pytest.mark.parametrize("pattern", ["^a|b", "a|b$", "a^b", "(^a)", "a$b", r"\Aa", r"a\Z"])
def test_anchors_within_a_pattern_are_no_expression_of_a_whole_text(pattern: str) -> None:
    assert searched(pattern) is None
