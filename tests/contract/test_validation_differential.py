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


def mutated(example: Any, chance: random.Random, values: list[Any], names: list[str]) -> Any:
    """Return the example with some places replaced, removed or added."""
    body = copy.deepcopy(example)
    for value in values:
        if not body:
            return value
        holder, key = chance.choice(places(body))
        if isinstance(holder, dict) and chance.random() < 0.2:
            del holder[key]
        elif isinstance(holder, dict) and chance.random() < 0.4:
            holder[chance.choice(names)] = value
        else:
            holder[key] = value
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
    names = sorted(set(member_names(schema)))

    @settings(max_examples=150, deadline=None, derandomize=True, database=None)
    @given(st.sampled_from(examples(operation)), st.randoms(), st.lists(JSON_VALUES, max_size=3))
    def check(example: Any, chance: random.Random, values: list[Any]) -> None:
        body = orjson.loads(orjson.dumps(mutated(example, chance, values, names)))
        verdict = reference(body)
        assert fast(body) is verdict
        assert (find_misfit(schema, body) is None) is verdict
        if not verdict:
            assert len(explain(schema, body)) < 400

    check()


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
