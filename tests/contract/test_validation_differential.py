"""The fast validator, the reference one and the explanation agree on every body of every operation."""

from __future__ import annotations

import copy
import random
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import openapi
from handlers.http.explain import explain, find_misfit
from handlers.http.operations import operation_table
from handlers.http.validation import COMPILED, REFERENCE, compile_schema
from openapi.schema import to_draft4

DOCUMENT = openapi.load()
COMPONENTS = DOCUMENT["components"]
ROWS = {row.id: row for row in operation_table(DOCUMENT).values() if row.request_schema is not None}
BODIES = 1000  # for each operation
BOUNDS = (0, 1, 128, 255, 2**31, -(2**31), 2**32, 2**53, 2**63 - 1, -(2**63) + 1)
WORDS = ("", "a", "auto", "none", "text", "function", "json", "regex", "type", "name", "1", "length")
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5)
    | st.sampled_from(
        [0, 1, -1, 1.0, 10.0, 2**31, 2**32, 2**63, "auto", "none", "text", "function", [], {}, [[]]]
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)


def examples(operation: str) -> list[Any]:
    """Return the document's examples of an operation's body."""
    row = ROWS[operation]
    body = DOCUMENT["paths"][row.path]["post"]["requestBody"]["content"]["application/json"]
    return [example["value"] for example in body["examples"].values()]


def places(value: Any) -> list[tuple[Any, Any]]:
    """List all containers of a value with their keys."""
    if isinstance(value, dict):
        return [(value, key) for key in value] + [
            place for member in value.values() for place in places(member)
        ]
    if isinstance(value, list):
        return [(value, at) for at in range(len(value))] + [place for item in value for place in places(item)]
    return []


def any_value(chance: random.Random, depth: int = 2) -> Any:
    """Return a value of any kind: at and beyond bounds, words of the contract, nested."""
    kind = chance.randrange(8 if depth else 6)
    if kind == 6:
        return [any_value(chance, depth - 1) for _ in range(chance.randrange(3))]
    if kind == 7:
        return {chance.choice(WORDS): any_value(chance, depth - 1) for _ in range(chance.randrange(3))}
    if kind == 5:
        return chance.choice(BOUNDS) + chance.choice((-1, 0, 1))
    if kind == 4:
        return chance.choice((0.5, -0.0, 1.0, 10.0, 1e308, 2.0**63, -1e-300))
    return (None, chance.random() < 0.5, chance.choice(WORDS), chance.randrange(-5, 100))[kind]


def mutated(example: Any, chance: random.Random, names: list[str]) -> Any:
    """Return the example with some places replaced, removed or added."""
    body = copy.deepcopy(example)
    for _ in range(chance.randrange(1, 4)):
        if not body or chance.random() < 0.02:
            return any_value(chance)
        holder, key = chance.choice(places(body))
        if isinstance(holder, dict) and chance.random() < 0.2:
            del holder[key]
        elif isinstance(holder, dict) and chance.random() < 0.6:
            holder[chance.choice(names)] = any_value(chance)
        else:
            holder[key] = any_value(chance)
    return body


def member_names(schema: Any) -> list[str]:
    """List all names that a schema knows at any depth."""
    if isinstance(schema, list):
        return [name for item in schema for name in member_names(item)]
    if not isinstance(schema, dict):
        return []
    own = list(schema["properties"]) if isinstance(schema.get("properties"), dict) else []
    return own + [name for part in schema.values() for name in member_names(part)]


@pytest.mark.parametrize("operation", ROWS)
def test_all_verdicts_on_a_mutated_body_are_the_same(operation: str) -> None:
    schema = to_draft4(ROWS[operation].request_schema or {}, COMPONENTS)
    fast, reference = compile_schema(schema, COMPILED), compile_schema(schema, REFERENCE)
    names, chance = sorted(set(member_names(schema))), random.Random(operation)
    verdicts: dict[bytes, bool] = {}
    while len(verdicts) < BODIES:
        raw = orjson.dumps(mutated(chance.choice(examples(operation)), chance, names))
        body = orjson.loads(raw)
        verdict = verdicts[raw] = reference(body)
        assert fast(body) is verdict, raw
        assert (find_misfit(schema, body) is None) is verdict, raw
        if not verdict:
            assert len(explain(schema, body)) < 400
    accepted = sum(verdicts.values()) / BODIES
    assert 0.03 < accepted < 0.9, "so many of one kind show little"  # few of what has two members fit


def test_more_than_ten_thousand_mutated_bodies_are_compared() -> None:
    assert BODIES * len(ROWS) > 10_000


@pytest.mark.parametrize("operation", ROWS)
@settings(max_examples=30, deadline=None, derandomize=True, database=None)
@given(body=JSON_VALUES)
def test_all_verdicts_on_any_value_are_the_same(operation: str, body: Any) -> None:
    schema = to_draft4(ROWS[operation].request_schema or {}, COMPONENTS)
    verdict = compile_schema(schema, REFERENCE)(body)
    assert compile_schema(schema, COMPILED)(body) is verdict
    assert (find_misfit(schema, body) is None) is verdict


@pytest.mark.parametrize("operation", ROWS)
def test_the_documents_examples_fit(operation: str) -> None:
    schema = to_draft4(ROWS[operation].request_schema or {}, COMPONENTS)
    for body in examples(operation):
        assert compile_schema(schema, COMPILED)(body)
        assert compile_schema(schema, REFERENCE)(body)
        assert find_misfit(schema, body) is None
