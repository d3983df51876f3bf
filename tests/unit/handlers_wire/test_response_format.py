from __future__ import annotations

import json
from typing import Any

import pytest

from handlers.wire.limits import Limits
from handlers.wire.response_format import to_response_format
from inference.errors import InvalidInput
from inference.types import GrammarKind

SCHEMA = {
    "type": "object",
    "properties": {"b": {"type": "integer"}, "a": {"type": "string"}},
    "additionalProperties": False,
}
ANY = {"type": "object"}
PLACE = "response_format"
LIMITS = Limits(max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5)


@pytest.mark.parametrize("given", [None, {"type": "text"}, {"type": "text", "value": None}])
def test_text_is_no_restriction(given: Any) -> None:
    assert to_response_format(given, LIMITS) is None


@pytest.mark.parametrize(
    ("given", "schema", "member"),
    [
        ({"type": "json_object"}, ANY, PLACE),
        ({"type": "json_object", "value": None, "json_schema": None}, ANY, PLACE),
        ({"type": "json_object", "value": SCHEMA}, SCHEMA, f"{PLACE}.value"),
        ({"type": "json_object", "schema": SCHEMA}, SCHEMA, f"{PLACE}.schema"),
        ({"type": "json", "value": SCHEMA}, SCHEMA, f"{PLACE}.value"),
        ({"type": "json", "value": json.dumps(SCHEMA)}, SCHEMA, f"{PLACE}.value"),
        ({"type": "json_schema", "value": {"schema": SCHEMA}}, SCHEMA, f"{PLACE}.value.schema"),
        ({"type": "json_schema", "json_schema": {"schema": SCHEMA}}, SCHEMA, f"{PLACE}.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"name": "x"}}, ANY, f"{PLACE}.json_schema.schema"),
        ({"type": "json_schema", "json_schema": {"schema": None}}, ANY, f"{PLACE}.json_schema.schema"),
    ],
)
def test_a_schema_is_found_in_every_dialect(given: Any, schema: Any, member: str) -> None:
    grammar = to_response_format(given, LIMITS)
    assert grammar is not None
    assert (grammar.kind, grammar.member) == (GrammarKind.JSON_SCHEMA, member)
    assert json.loads(grammar.source) == schema
    assert list(json.loads(grammar.source).get("properties", ())) == list(schema.get("properties", ()))


def test_a_regular_expression_is_taken_as_it_is() -> None:
    grammar = to_response_format({"type": "regex", "value": "a+"}, LIMITS)
    assert grammar is not None
    assert (grammar.kind, grammar.source, grammar.member) == (GrammarKind.REGEX, "a+", f"{PLACE}.value")


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        (
            {"type": "json_schema", "value": {"schema": SCHEMA}, "json_schema": {"schema": SCHEMA}},
            "`response_format` has `value` and `json_schema`: they mean the same, give one",
        ),
        (
            {"type": "json_schema"},
            "`response_format.json_schema` is missing: give it with the JSON Schema in its member `schema`",
        ),
        (
            {"type": "text", "value": SCHEMA},
            "`response_format.value` does not go with the type 'text': leave it out",
        ),
        (
            {"type": "json_object", "json_schema": {"schema": SCHEMA}},
            "`response_format.json_schema` does not go with the type 'json_object': leave it out",
        ),
        (
            {"type": "json_object", "schema": SCHEMA, "value": SCHEMA},
            "`response_format` has `value` and `schema`: they mean the same, give one",
        ),
        (
            {"type": "json_schema", "schema": SCHEMA},
            "`response_format.schema` does not go with the type 'json_schema': leave it out",
        ),
        (
            {"type": "regex", "value": "a", "json_schema": {}},
            "`response_format.json_schema` does not go with the type 'regex': leave it out",
        ),
    ],
)
def test_members_that_contradict_each_other_are_refused(given: Any, complaint: str) -> None:
    with pytest.raises(InvalidInput) as refusal:
        to_response_format(given, LIMITS)
    assert str(refusal.value) == complaint


@pytest.mark.parametrize(
    ("given", "member"),
    [
        ({"type": "json"}, f"{PLACE}.value"),
        ({"type": "json", "value": 3}, f"{PLACE}.value"),
        ({"type": "json", "value": "{"}, f"{PLACE}.value"),
        ({"type": "regex", "value": {}}, f"{PLACE}.value"),
        ({"type": "json_schema", "value": {}}, f"{PLACE}.value"),
        ({"type": "json_schema", "json_schema": {"schema": [1]}}, f"{PLACE}.json_schema.schema"),
    ],
)
def test_what_is_no_schema_is_refused_by_its_place(given: Any, member: str) -> None:
    with pytest.raises(InvalidInput, match=f"`{member}`"):
        to_response_format(given, LIMITS)


ODD: dict[str, Any] = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}


@pytest.mark.parametrize("strict", [{}, {"strict": None}, {"strict": False}])
def test_what_no_grammar_expresses_is_left_out_of_openais_schema_that_is_not_strict(strict: Any) -> None:
    given: Any = {"type": "json_schema", "json_schema": {"schema": ODD, **strict}}
    found = to_response_format(given, LIMITS)
    assert found is not None
    assert json.loads(found.source)["properties"] == {"a": {"type": "array"}}
    assert found.left_out == (f"{PLACE}.json_schema.schema.uniqueItems",)


@pytest.mark.parametrize(
    "given",
    [
        {"type": "json_schema", "json_schema": {"schema": ODD, "strict": True}},
        {"type": "json_schema", "value": {"schema": ODD}},
        {"type": "json", "value": ODD},
        {"type": "json_object", "schema": ODD},
    ],
)
def test_a_strict_schema_and_tgis_are_taken_word_for_word(given: Any) -> None:
    found = to_response_format(given, LIMITS)
    assert found is not None
    assert json.loads(found.source)["properties"] == ODD["properties"]
    assert not found.left_out


def test_a_schema_of_too_many_schemas_is_taken_word_for_word_and_left_to_be_refused() -> None:
    many = {**ODD, "allOf": [{"type": "object"}] * (LIMITS.of_schema.schemas + 1)}
    given: Any = {"type": "json_schema", "json_schema": {"schema": many}}
    found = to_response_format(given, LIMITS)
    assert found is not None
    assert not found.left_out
