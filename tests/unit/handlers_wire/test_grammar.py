from __future__ import annotations

import json
from typing import Any, Literal

import pytest

from handlers.wire.grammar import allowed, schema_grammar, to_grammar
from handlers.wire.limits import Limits
from handlers.wire.types import GrammarType
from inference.errors import GrammarRefused
from inference.grammar.schema import LIMITS
from inference.grammar_limits import GrammarLimits
from inference.types import Grammar, GrammarKind

SCHEMA = {"type": "object", "properties": {"b": {"type": "integer"}, "a": {}}, "additionalProperties": False}


@pytest.mark.parametrize("kind", ["json", "json_object"])
@pytest.mark.parametrize("value", [SCHEMA, json.dumps(SCHEMA)])
def test_a_schema_is_an_object_or_a_text_that_holds_one(
    kind: Literal["json", "json_object"], value: Any
) -> None:
    given: GrammarType = {"type": kind, "value": value}
    made = to_grammar(given, "parameters.grammar")
    assert (made.kind, made.member) == (GrammarKind.JSON_SCHEMA, "parameters.grammar.value")
    assert list(json.loads(made.source)["properties"]) == ["b", "a"]  # the members' order is the text's


def test_a_schema_is_taken_as_tgi_takes_it() -> None:
    made = to_grammar({"type": "json", "value": {"properties": {"a": {"type": "string"}}}}, "g")
    assert json.loads(made.source) == {
        "type": "object",
        "properties": {"a": {"type": "string"}},
        "additionalProperties": False,
    }


def test_a_named_schema_is_wrapped() -> None:
    made = to_grammar({"type": "json_schema", "value": {"name": "x", "schema": SCHEMA}}, "grammar")
    assert (json.loads(made.source), made.member) == (SCHEMA, "grammar.value.schema")


def test_a_regular_expression_stays_as_it_is() -> None:
    made = to_grammar({"type": "regex", "value": r"\d+"}, "grammar")
    assert made == Grammar(kind=GrammarKind.REGEX, source=r"\d+", member="grammar.value")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            {"type": "json", "value": 3},
            "grammar is not supported: `g.value` must be a JSON Schema, as an object or as a text that holds "
            "one. Given: 3",
        ),
        (
            {"type": "json", "value": "true"},
            "grammar is not supported: `g.value` must be a JSON Schema, as an object or as a text that holds "
            "one. Given: true",
        ),
        (
            {"type": "json", "value": "{"},
            "grammar is not valid: `g.value` holds no JSON: unexpected end of data: line 1 column 2 (char 1)",
        ),
        (
            {"type": "regex", "value": SCHEMA},
            "grammar is not supported: `g.value` must be a regular expression, as a text. Given: an object",
        ),
        (
            {"type": "json_schema", "value": [1]},
            "grammar is not supported: `g.value` must be an object with the member `schema`. "
            "Given: an array of 1",
        ),
        (
            {"type": "json_schema", "value": {"name": "x"}},
            "grammar is not valid: `g.value` lacks the member `schema`",
        ),
        (
            {"type": "lark", "value": "start: /a/"},
            "grammar is not supported: `g.type` is one of json, json_object, json_schema and regex. "
            'Given: "lark"',
        ),
    ],
)
def test_other_grammars_are_refused_in_tgis_words(given: Any, message: str) -> None:
    with pytest.raises(GrammarRefused) as refusal:
        to_grammar(given, "g")
    assert str(refusal.value) == message


TYPO = (
    "grammar is not valid: Grammar must have a 'properties' field: `g.value` has no keyword of JSON Schema. "
    "Give the schema itself, with what it describes in `properties`"
)


@pytest.mark.parametrize(
    "value",
    [
        {"a": {"type": "integer"}},
        {"a": {"type": "integer"}, "id": {"type": "integer"}},
        {"name": "x", "schema": SCHEMA},
        {"name": "x", "description": "d", "strict": True, "schema": SCHEMA},
        '{"a": {"type": "integer"}}',
    ],
)
@pytest.mark.parametrize("kind", ["json", "json_object"])
def test_what_is_no_schema_is_refused_in_tgis_words(kind: Any, value: Any) -> None:
    with pytest.raises(GrammarRefused) as refusal:
        to_grammar({"type": kind, "value": value}, "g")
    assert str(refusal.value) == TYPO


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"description": "Anything."},
        {"title": "T", "x-order": 1},
        {"$schema": "https://json-schema.org/draft/2020-12/schema"},
        {"id": "https://example.com/any"},
        {"$defs": {"a": {}}, "schema": {}},
        {"minLength": 1},
    ],
)
def test_a_schema_may_allow_anything_if_it_is_one(value: Any) -> None:
    assert json.loads(schema_grammar(value, "g").source) == value


@pytest.mark.parametrize("loosely", [None, LIMITS])
@pytest.mark.parametrize("levels", [70, 300, 600, 1000])
def test_a_schema_that_is_nested_too_deep_is_refused(levels: int, loosely: GrammarLimits | None) -> None:
    deep: dict[str, Any] = {"not": {}}
    for _ in range(levels):
        deep = {"items": deep}
    with pytest.raises(
        GrammarRefused, match=r"^grammar is not valid: `g`: a schema must be nested <= 64 deep"
    ):
        schema_grammar(deep, "g", loosely)


@pytest.mark.parametrize(
    "value",
    [
        {"$ref": "#x", "k" * 200_000: [0] * 1_500},  # whose places would take 300 MB
        {"type": "string", "description": "d" * 140_000},
        {"enum": [*range(21_000)]},
    ],
)
def test_a_schema_that_is_too_large_is_refused_before_it_is_read(value: Any) -> None:
    with pytest.raises(GrammarRefused, match=r"^grammar is not valid: `g`: .* must have <= (131072|20000) "):
        schema_grammar(value, "g")


def test_grammars_can_be_switched_off_at_start() -> None:
    grammar = schema_grammar(SCHEMA, "response_format.value")
    off = Limits(max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5, grammar_support=False)
    on = Limits(max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5)
    with pytest.raises(GrammarRefused, match=r"^grammar is not supported: leave out `response_format`"):
        allowed(grammar, off)
    assert allowed(grammar, on) is grammar
    assert allowed(None, off) is None
