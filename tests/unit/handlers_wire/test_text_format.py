from __future__ import annotations

import json
from typing import Any

import pytest

from handlers.wire.limits import Limits
from handlers.wire.text_format import to_form, told_format
from inference.errors import InvalidInput
from inference.types import Grammar, GrammarKind

LIMITS = Limits(max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5)
SCHEMA: Any = {"type": "object", "properties": {"a": {"type": "integer"}}, "additionalProperties": False}


def form(**given: Any) -> Grammar | None:
    text: Any = {"format": given}
    return to_form(text, LIMITS)


def test_any_text_has_no_form() -> None:
    for text in (None, {}, {"format": None}, {"format": {"type": "text"}}):
        given: Any = text
        assert to_form(given, LIMITS) is None


def test_a_schema_is_named_where_it_stands() -> None:
    found = form(type="json_schema", name="a", schema=SCHEMA)
    assert found is not None
    assert (found.kind, found.member) == (GrammarKind.JSON_SCHEMA, "text.format.schema")
    assert json.loads(found.source) == SCHEMA


@pytest.mark.parametrize("given", [{"type": "json_object"}, {"type": "json_schema", "name": "a"}])
def test_without_a_schema_it_is_any_object(given: Any) -> None:
    found = form(**given)
    assert found is not None
    assert (json.loads(found.source), found.member) == ({"type": "object"}, "text.format")


def test_an_expression_is_taken_as_it_is() -> None:
    assert form(type="regex", value="a+") == Grammar(
        kind=GrammarKind.REGEX, source="a+", member="text.format.value"
    )


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"type": "text", "schema": SCHEMA}, "`text.format.schema` does not go with the type 'text'"),
        (
            {"type": "json_schema", "value": "a"},
            "`text.format.value` does not go with the type 'json_schema'",
        ),
        ({"type": "regex"}, "`text.format` is of type 'regex' and has no `value`: add it"),
    ],
)
def test_what_does_not_go_together_is_refused(given: Any, message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        form(**given)
    assert message in str(refused.value)


def test_the_form_is_told_as_it_is_understood() -> None:
    given: Any = {"type": "json_schema", "schema": SCHEMA, "strict": False}
    assert told_format(None) == {"type": "text"}
    assert told_format({"format": {"type": "json_object"}}) == {"type": "json_object"}
    assert told_format({"format": {"type": "regex", "value": "a+"}}) == {"type": "regex", "value": "a+"}
    assert told_format({"format": given}) == {**given, "name": "schema"}
    assert told_format({"format": {"type": "json_schema", "name": "n"}}) == {
        "type": "json_schema",
        "name": "n",
        "schema": {"type": "object"},
        "strict": False,
    }
    strict: Any = {**given, "strict": True}
    assert told_format({"format": strict}) == {**strict, "name": "schema"}


def test_what_no_grammar_expresses_is_left_out_of_a_schema_that_is_not_strict() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    loose = form(type="json_schema", schema=odd, strict=False)
    strict = form(type="json_schema", schema=odd, strict=True)
    assert loose is not None
    assert strict is not None
    assert json.loads(loose.source)["properties"] == {"a": {"type": "array"}}
    assert loose.left_out == ("text.format.schema.uniqueItems",)
    assert json.loads(strict.source)["properties"] == odd["properties"]
