"""How many of something a body may have: found by length, before anything else is looked at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft4Validator

import openapi
from handlers.http.bounds import bounds_of
from handlers.http.errors import Refused
from handlers.http.operations import operation_table
from handlers.http.support import SupportRules
from handlers.http.validation import RequestCheck

FEW = {"type": "array", "x-most": 2, "items": {"type": "string"}}
COMPONENTS: dict[str, Any] = {
    "schemas": {
        "Few": FEW,
        "Tree": {"type": "object", "properties": {"children": {"$ref": "#/components/schemas/Trees"}}},
        "Trees": {"type": "array", "x-most": 2, "items": {"$ref": "#/components/schemas/Tree"}},
    }
}
NULL = {"type": "object", "nullable": True, "enum": [None]}


def properties(**members: Any) -> dict[str, Any]:
    """Return the schema of an object."""
    return {"type": "object", "properties": members}


def complaint(schema: Mapping[str, Any], body: Any) -> str | None:
    """Return what is said of a body that has too many, or None."""
    try:
        bounds_of(schema, COMPONENTS).check(body)
    except Refused as error:
        refused = error
    else:
        return None
    assert (refused.status, refused.error_type) == (422, "validation")
    return str(refused).removeprefix("Input validation error: ")


@pytest.mark.parametrize(
    ("schema", "body", "expected"),
    [
        (properties(a=FEW), {"a": ["x"] * 2}, None),
        (properties(a=FEW), {"a": ["x"] * 3}, "`a` must have at most 2 items. Given: 3. Send fewer"),
        (properties(a=FEW), {"a": {"b": 1, "c": 2, "d": 3}}, None),  # for the validator to refuse
        (properties(a=FEW), {"a": None}, None),
        (properties(a=FEW), {}, None),
        (properties(a=FEW), ["x"] * 3, None),
        (
            properties(a={"type": "object", "x-most": 1, "additionalProperties": {}}),
            {"a": {"b": 1, "c": 2}},
            "`a` must have at most 1 members. Given: 2. Send fewer",
        ),
        (
            properties(a={"type": "object", "x-most": 1, "additionalProperties": {}}),
            {"a": {"b": 1}},
            None,
        ),
        (  # an object that says no type
            properties(a={"x-most": 1, "properties": {"b": {}, "c": {}}}),
            {"a": {"b": 1, "c": 2}},
            "`a` must have at most 1 members. Given: 2. Send fewer",
        ),
        (properties(a={"type": "array", "x-most": 2}), {"a": ["x"] * 2}, None),
        (
            properties(a={"anyOf": [FEW, {"type": "array", "enum": [[]]}]}),
            {"a": ["x"] * 3},
            "`a` must have at most 2 items. Given: 3. Send fewer",
        ),
        (
            properties(a={"type": "array", "anyOf": [FEW]}),
            {"a": ["x"] * 3},
            "`a` must have at most 2 items. Given: 3. Send fewer",
        ),
        (
            properties(a={"type": "array", "items": properties(b={"$ref": "#/components/schemas/Few"})}),
            {"a": [{}, {"b": ["x"]}, {"b": ["x"] * 9}]},
            "`a[2].b` must have at most 2 items. Given: 9. Send fewer",
        ),
        (
            properties(a={"anyOf": [FEW, NULL]}),
            {"a": ["x"] * 3},
            "`a` must have at most 2 items. Given: 3. Send fewer",
        ),
        (properties(a={"anyOf": [FEW, {"type": "string"}]}), {"a": "xxxx"}, None),
        (properties(a={"anyOf": [FEW, {**FEW, "x-most": 4}]}), {"a": ["x"] * 4}, None),
        (
            properties(a={"anyOf": [FEW, {**FEW, "x-most": 4}]}),
            {"a": ["x"] * 5},
            "`a` must have at most 4 items. Given: 5. Send fewer",
        ),
        (properties(a={"anyOf": [FEW, {"type": "array", "items": {}}]}), {"a": ["x"] * 5}, None),
        (
            {"anyOf": [properties(a={}), properties(a=FEW)]},
            {"a": ["x"] * 3},
            "`a` must have at most 2 items. Given: 3. Send fewer",
        ),
        (
            {"$ref": "#/components/schemas/Tree"},
            {"children": [{}] * 3},
            "`children` must have at most 2 items. Given: 3. Send fewer",
        ),
    ],
)
def test_what_has_too_many_is_named(schema: dict[str, Any], body: Any, expected: str | None) -> None:
    assert complaint(schema, body) == expected


def schemas() -> st.SearchStrategy[dict[str, Any]]:
    """Make schemas of arrays and objects, bounded at some depths."""
    most = st.fixed_dictionaries({}, optional={"x-most": st.integers(0, 2)})
    return st.recursive(
        st.just({"type": "integer"}),
        lambda inner: (
            st.builds(
                lambda a, b: {**a, **b},
                st.builds(lambda items: {"type": "array", "items": items}, inner),
                most,
            )
            | st.builds(
                lambda a, b: {**a, **b},
                st.builds(
                    lambda members: {"type": "object", "properties": members},
                    st.dictionaries(st.sampled_from("ab"), inner, max_size=2),
                ),
                most,
            )
        ),
        max_leaves=4,
    )


BODIES = st.recursive(
    st.just(1),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abc"), inner),
    max_leaves=9,
)


@given(schemas(), BODIES)
def test_bounds_are_what_json_schema_calls_most_items_and_properties(schema: Any, body: Any) -> None:
    validator = Draft4Validator(_translated(schema))
    assert (complaint(schema, body) is None) is validator.is_valid(body)


def _translated(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema with JSON Schema's own keywords, and none for what isn't asked about."""
    out: dict[str, Any] = {}
    if "x-most" in schema:
        out["maxItems" if schema["type"] == "array" else "maxProperties"] = schema["x-most"]
    if "items" in schema:
        out["items"] = _translated(schema["items"])
    if "properties" in schema:
        out["properties"] = {name: _translated(inner) for name, inner in schema["properties"].items()}
    return out


def test_too_many_are_refused_before_anything_in_them_is_looked_at() -> None:
    def looked_at(body: Any) -> bool:
        raise AssertionError("the validator was asked")

    schema = properties(a=FEW)
    rules = SupportRules(schema, COMPONENTS, lambda part: looked_at)
    check = RequestCheck(schema, looked_at, rules, bounds_of(schema, COMPONENTS))
    with pytest.raises(Refused, match="at most 2 items"):
        check({"a": ["x"] * 3})


def _marked(node: Any) -> Iterator[Mapping[str, Any]]:
    """Yield the schemas that have a bound, wherever they stand."""
    if isinstance(node, Mapping):
        if "x-most" in node:
            yield node
        for inner in node.values():
            yield from _marked(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _marked(inner)


def test_the_documents_bounds_are_held_and_told_in_words() -> None:
    document = openapi.load()
    marked = [node["x-most"] for node in _marked(document["components"]["schemas"])]
    ranges = " ".join(_texts(document["components"]["schemas"]))
    assert len(marked) > 8
    assert [most for most in marked if f"at most {most}" not in ranges and most != 524_288] == []
    bounded = {
        name
        for name, row in operation_table(document).items()
        if row.request_schema is not None
        and bounds_of(row.request_schema, document["components"]) != bounds_of({}, {})
    }
    assert bounded >= {"chat_completions", "completions", "generate", "vertex_compatibility", "kserve_infer"}


def _texts(node: Any) -> Iterator[str]:
    if isinstance(node, Mapping):
        yield str(node.get("x-range", ""))
        for inner in node.values():
            yield from _texts(inner)
    elif isinstance(node, list):
        for inner in node:
            yield from _texts(inner)
