from __future__ import annotations

import json
from collections.abc import Set
from typing import Any

import pytest

from inference.grammar.words import words_of
from tests.unit.inference.grammar.vocabularies import follows, schema, written

WHOLE = {"type": "integer"}
CLOSED = {"type": "object", "additionalProperties": False}


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ("^a$", {"a"}),
        ("^(en|fr)$", {"en", "fr"}),
        ("^en$|^fr$", {"en", "fr"}),
        ("^[ab]c?$", {"a", "ac", "b", "bc"}),
        ("^[a-c-]$", {"a", "b", "c", "-"}),
        ("^x{1,3}$", {"x", "xx", "xxx"}),
        ("^x{2}$", {"xx"}),
        (r"^\.(?:a|b)(?P<n>c)$", {".ac", ".bc"}),
        ("^$", {""}),
    ],
)
def test_an_expression_of_few_words_is_listed(pattern: str, words: Set[str]) -> None:
    assert words_of(pattern) == words


MUCH = ["a", "^a", "^a|b$", "^.$", "^[^a]$", r"^\d$", "^a*$", "^[a-z]{2}$", r"^[\w]$", "^[a-\U00010000]$"]
OTHERWISE = ["^(?=a)$", "^a??$", "^(a$", "^a)$", "^a{2}{2}$", "^(^a)$", r"^\n$"]


@pytest.mark.parametrize("pattern", [*MUCH, *OTHERWISE])
def test_what_matches_much_or_is_written_otherwise_is_left(pattern: str) -> None:
    assert words_of(pattern) is None


@pytest.mark.parametrize(
    "value",
    [
        {**CLOSED, "required": ["a", "x"], "patternProperties": {"^[ax]$": WHOLE}},
        {**CLOSED, "properties": {"x": WHOLE}, "patternProperties": {"^x$": {"minimum": 5}}},
        {**CLOSED, "properties": {"x": True}, "required": ["y"], "patternProperties": {"^x$|^y$": WHOLE}},
    ],
)
def test_no_text_begins_a_name_that_nothing_is_left_for(value: dict[str, Any]) -> None:
    texts = [text for seed in range(60) if (text := written(schema(value), seed)) is not None]
    assert len(texts) > 30
    assert all(isinstance(json.loads(text), dict) for text in texts)


def test_what_a_pattern_says_of_listed_names_holds_when_it_became_properties() -> None:
    own = {**CLOSED, "properties": {"x": WHOLE}, "patternProperties": {"^x$": {"minimum": 5}}}
    assert follows(schema(own), '{"x":5}')
    assert not follows(schema(own), '{"x":4}')
    required = {**CLOSED, "required": ["b", "a"], "patternProperties": {"^[ab]$": WHOLE}}
    assert follows(schema(required), '{"b":1,"a":2}')
    assert not follows(schema(required), '{"b":null,"a":2}')


def test_a_pattern_that_is_referred_to_or_matches_other_names_is_left() -> None:
    more = {**CLOSED, "properties": {"a": WHOLE}, "patternProperties": {"^[ab]$": WHOLE}}
    assert follows(schema(more), '{"b":1}')
    shared = {
        **CLOSED,
        "properties": {"a": WHOLE, "b": {"$ref": "#/patternProperties/%5Ea$"}},
        "patternProperties": {"^a$": {"minimum": 5}},
    }
    assert follows(schema(shared), '{"a":5,"b":5}')
    assert not follows(schema(shared), '{"a":5,"b":4}')
