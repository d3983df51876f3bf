"""The reason a body is refused: the right branch, the right place, never too long and never too slow."""

from __future__ import annotations

from typing import Any

import pytest

from handlers.http.explain import explain, find_misfit, show

TEXT = {
    "type": "object",
    "properties": {"type": {"enum": ["text"]}, "text": {"type": "string"}},
    "required": ["text"],
}
IMAGE = {
    "type": "object",
    "properties": {"type": {"enum": ["image"]}, "url": {"type": "string"}},
    "required": ["url"],
}

NUMBERS = {"type": "array", "items": {"type": "integer"}}
STRINGS_OR_NUMBERS = {
    "anyOf": [
        {"type": "array", "items": {"type": "string"}},
        NUMBERS,
        {"type": "array", "items": NUMBERS},
    ]
}

STRINGS_OR_IDS = {
    "anyOf": [
        {"type": "array", "items": {"type": "string"}},
        {"type": "array", "items": {"type": "integer", "minimum": 0}},
    ]
}


@pytest.mark.parametrize(
    ("schema", "value", "reason"),
    [
        ({"type": "integer"}, True, "body: expected an integer, got true"),
        ({"type": "integer"}, 1.0, "body: expected an integer, got 1.0"),
        (
            {"type": ["integer", "null"], "maximum": 2**64 - 1},
            2.0**64,
            "body: expected at most 18446744073709551615, got 1.8446744073709552e+19",
        ),
        ({"type": "integer", "maximum": 5}, 1e300, "body: expected at most 5, got 1e+300"),
        ({"type": "integer", "minimum": 0}, -(2.0**63), "body: expected at least 0, got -9.2"),
        ({"type": "integer", "maximum": 2**64 - 1}, 1e19, "body: expected an integer, got 1e+19"),
        ({"type": "integer", "maximum": 5}, 6.0, "body: expected an integer, got 6.0"),
        ({"type": "integer", "maximum": 5}, float("inf"), "body: expected an integer, got null"),
        ({"type": "integer"}, 2.0**64, "body: expected an integer, got 1.8"),
        ({"type": "boolean", "maximum": 5}, 2.0**64, "body: expected a boolean, got 1.8"),
        ({"type": ["string", "null"]}, 1, "body: expected a string or null, got 1"),
        ({"enum": ["a", "b", None]}, "c", 'body: expected "a", "b" or null, got "c"'),
        ({"enum": [0]}, False, "body: expected 0, got false"),
        ({"minimum": 1}, 0, "body: expected at least 1, got 0"),
        ({"minimum": 0, "exclusiveMinimum": True}, 0, "body: expected more than 0, got 0"),
        ({"maximum": 1}, 1.5, "body: expected at most 1, got 1.5"),
        ({"maximum": 1, "exclusiveMaximum": True}, 1, "body: expected less than 1, got 1"),
        ({"minLength": 1}, "", 'body: expected at least 1 characters, got ""'),
        ({"pattern": "^a$"}, "b", 'body: expected text that matches ^a$, got "b"'),
        ({"minItems": 1}, [], "body: expected at least 1 items, got an array of 0"),
        ({"uniqueItems": True}, [1, 1], "body: expected no item twice, got an array of 2"),
        ({"required": ["a"]}, {}, "body: missing field `a`, got an empty object"),
        (
            {"additionalProperties": False, "properties": {}},
            {"a": 1},
            "body: unknown field `a`, got an object with `a`",
        ),
        ({"additionalProperties": {"type": "string"}}, {"a": 1}, "a: expected a string, got 1"),
        ({"items": {"type": "string"}}, ["a", 1], "[1]: expected a string, got 1"),
        ({"allOf": [{"type": "object"}, {"required": ["a"]}]}, {"b": 1}, "body: missing field `a`"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "body: expected a string or null, got 1"),
        ({"anyOf": [TEXT, IMAGE]}, {"type": "image", "url": 1}, "url: expected a string, got 1"),
        ({"anyOf": [IMAGE, TEXT]}, {"type": "text", "text": 1}, "text: expected a string, got 1"),
        ({"anyOf": [IMAGE, TEXT]}, {"text": 1}, "text: expected a string, got 1"),
        ({"oneOf": [{"type": "number"}, {"type": "integer"}]}, 1, "body: has more than one of the forms"),
        ({"not": {"type": "null"}}, None, "body: null is excluded"),
        ({"anyOf": [{"anyOf": [{"type": "null"}, TEXT]}]}, {"text": 1}, "text: expected a string, got 1"),
        ({"anyOf": [IMAGE, TEXT]}, {"a": 1}, "body: missing field `url` or `text`, got an object with `a`"),
        ({"anyOf": [IMAGE, TEXT]}, {"type": "text"}, "body: missing field `text`, got an object with `type`"),
        (STRINGS_OR_NUMBERS, ["a", 1], "[1]: expected a string, got 1"),
        (STRINGS_OR_NUMBERS, [1, 2, "a"], '[2]: expected an integer, got "a"'),
        (STRINGS_OR_NUMBERS, [[1, "a"], [2]], '[0][1]: expected an integer, got "a"'),
        (STRINGS_OR_IDS, [-1], "[0]: expected at least 0, got -1"),
        (STRINGS_OR_IDS, [True], "[0]: expected a string, got true"),
        (STRINGS_OR_IDS, [1.0], "[0]: expected an integer, got 1.0"),
        (STRINGS_OR_IDS, [1, 2.5], "[1]: expected an integer, got 2.5"),
        (STRINGS_OR_IDS, [2.0**64], "[0]: expected an integer, got 1.8"),
        (STRINGS_OR_NUMBERS, [[1], 2], "[1]: expected an array, got 2"),
    ],
)
def test_the_reason(schema: dict[str, Any], value: Any, reason: str) -> None:
    assert explain(schema, value).startswith(reason)


def test_references_are_followed() -> None:
    schema = {"$ref": "#/definitions/Node", "definitions": {"Node": {"properties": {"next": {}, "n": {}}}}}
    node = schema["definitions"]["Node"]["properties"]  # type: ignore[index]
    node |= {"next": {"$ref": "#/definitions/Node"}, "n": {"type": "integer"}}
    assert explain(schema, {"next": {"next": {"n": "x"}}}) == 'next.next.n: expected an integer, got "x"'
    assert find_misfit(schema, {"next": {"n": 1}}) is None


def test_a_huge_body_is_given_up_instead_of_searched() -> None:
    schema = {"items": {"type": "integer"}}
    assert (
        explain(schema, [1] * 100_000 + ["x"]) == "body: does not have the shape that the contract describes"
    )


@pytest.mark.parametrize(
    "value", ["x" * 10**6, ["x" * 10**6] * 10, {"x" * 10**6: 1}, 10.0**300, {"a": {}, "b": []}]
)
def test_a_value_of_any_size_is_shown_shortly(value: Any) -> None:
    assert len(show(value)) < 350


def test_a_long_path_is_cut() -> None:
    assert len(explain({"additionalProperties": {"type": "null"}}, {"x" * 10**6: 1})) < 200
