"""What the comparison of two schemas says is held against a validator: jsonschema decides what they take."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft4Validator

from codegen.change import Level
from codegen.comparison import Comparison, Difference, Side
from codegen.shapes import Shapes
from openapi.schema import to_draft4

VALUES = st.recursive(
    st.sampled_from([None, True, False, 0, 1, 2, 3, 2.5, "", "a", "b", "ab"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=5,
)
BOUNDS = st.integers(0, 3)


def _numbers() -> st.SearchStrategy[Any]:
    optional = {"minimum": BOUNDS, "maximum": BOUNDS, "exclusiveMinimum": st.booleans()}
    kind = {"type": st.sampled_from(["number", "integer"])}
    return st.fixed_dictionaries(kind, optional=optional).map(_with_minimum)


def _with_minimum(schema: Any) -> Any:
    """Draft 4 wants a bound that is to be left out to be there."""
    return schema if "minimum" in schema else {k: v for k, v in schema.items() if k != "exclusiveMinimum"}


def _texts() -> st.SearchStrategy[Any]:
    optional = {
        "minLength": BOUNDS,
        "maxLength": BOUNDS,
        "enum": st.lists(st.sampled_from(["a", "b", "ab"]), min_size=1, unique=True),
    }
    return st.fixed_dictionaries({"type": st.just("string")}, optional=optional)


def _containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    names = st.sampled_from("abc")
    objects = st.fixed_dictionaries(
        {"type": st.just("object"), "properties": st.dictionaries(names, inner, max_size=3)},
        optional={
            "required": st.lists(names, min_size=1, unique=True),
            "additionalProperties": st.booleans() | inner,
        },
    )
    arrays = st.fixed_dictionaries(
        {"type": st.just("array"), "items": inner}, optional={"minItems": BOUNDS, "maxItems": BOUNDS}
    )
    several = st.lists(inner, min_size=1, max_size=2)
    unions = st.fixed_dictionaries({"anyOf": several}) | st.fixed_dictionaries({"oneOf": several})
    return objects | arrays | unions | st.fixed_dictionaries({"allOf": several})


def _nullable(schema: Any) -> Any:
    return {**schema, "nullable": True} if "type" in schema else schema


PLAIN = _numbers() | _texts() | st.sampled_from([{}, {"type": "boolean"}])
SCHEMAS = st.recursive(PLAIN | PLAIN.map(_nullable), _containers, max_leaves=6)
# two that have nothing to do with each other, and two of which the second takes at least what the first does
PAIRS = st.tuples(SCHEMAS, SCHEMAS).flatmap(
    lambda two: st.sampled_from([two, (two[0], {"anyOf": [*two]}), ({"allOf": [*two]}, two[0])])
)


def differences(old: Any, new: Any, side: Side) -> tuple[Difference, ...]:
    return Comparison(Shapes({}), Shapes({}), side).differences(old, new)


def breaks(found: tuple[Difference, ...]) -> bool:
    return any(difference.level is Level.MAJOR for difference in found)


def takes(schema: Any, value: Any) -> bool:
    return bool(Draft4Validator(to_draft4(schema, {})).is_valid(value))


@settings(max_examples=150, deadline=None)
@given(PAIRS, st.lists(VALUES, min_size=10, max_size=40))
def test_what_was_taken_is_taken_where_nothing_breaks(pair: Any, values: list[Any]) -> None:
    old, new = pair
    found = differences(old, new, Side.REQUEST)
    # a member that is new may have been sent before, as anything: it was passed over
    if not breaks(found) and all(difference.rule != "member-added" for difference in found):
        assert [value for value in values if takes(old, value) and not takes(new, value)] == []


@settings(max_examples=150, deadline=None)
@given(PAIRS, st.lists(VALUES, min_size=10, max_size=40))
def test_what_is_said_could_be_said_where_nothing_breaks(pair: Any, values: list[Any]) -> None:
    new, old = pair
    if not breaks(differences(old, new, Side.RESPONSE)):
        assert [value for value in values if takes(new, value) and not takes(old, value)] == []


@settings(max_examples=100, deadline=None)
@given(SCHEMAS, SCHEMAS)
def test_one_more_alternative_breaks_no_request(old: Any, other: Any) -> None:
    assert not breaks(differences(old, {"anyOf": [old, other]}, Side.REQUEST))


@settings(max_examples=150, deadline=None)
@given(SCHEMAS, st.sampled_from(Side))
def test_a_schema_does_not_differ_from_itself(schema: Any, side: Side) -> None:
    copied = Comparison(Shapes({"A": schema}), Shapes({}), side)
    assert not breaks(copied.differences({"$ref": "#/components/schemas/A"}, schema))


@settings(max_examples=100, deadline=None)
@given(SCHEMAS, SCHEMAS)
def test_what_widens_a_request_narrows_an_answer(one: Any, other: Any) -> None:
    widened = {found.rule for found in differences(one, other, Side.REQUEST)} == {"wider"}
    assert not widened or breaks(differences(one, other, Side.RESPONSE))


@pytest.mark.parametrize(
    ("old", "new", "rules"),
    [
        ({"type": "integer"}, {"type": "number"}, {"wider"}),
        ({"type": "number"}, {"type": "integer"}, {"narrower"}),
        ({"anyOf": [{"enum": ["a"]}, {"enum": ["b"]}]}, {"enum": ["b", "a"]}, set()),
        ({"allOf": [{"minimum": 1}, {"type": "integer"}]}, {"type": "integer", "minimum": 1}, set()),
        ({"anyOf": [{"type": "string"}, {"type": "string", "maxLength": 1}]}, {"type": "string"}, set()),
        ({"type": "string", "nullable": True}, {"anyOf": [{"type": "string"}, {"enum": [None]}]}, set()),
        ({"enum": [True]}, {"enum": [1]}, {"type-removed", "type-added"}),
        ({"type": "string", "pattern": "a"}, {"type": "string", "pattern": "b"}, {"undecided"}),
        ({}, {"type": "string"}, {"type-removed"}),
    ],
)
def test_what_a_request_may_hold(old: Any, new: Any, rules: set[str]) -> None:
    assert {difference.rule for difference in differences(old, new, Side.REQUEST)} == rules


@pytest.mark.parametrize(("kind", "bound"), [("array", "maxItems"), ("object", "maxProperties")])
def test_the_most_of_a_joined_schema_is_kept(kind: str, bound: str) -> None:
    joined = [{"type": kind, "x-most": 3}, {"type": kind, bound: 5}]
    (shape,) = Shapes({}).of({"allOf": joined})
    assert 3 == shape.most


def test_a_schema_that_holds_itself_is_compared() -> None:
    def nested(kind: str) -> Shapes:
        members = {"value": {"type": kind}, "below": {"$ref": "#/x/Tree"}}
        return Shapes({"Tree": {"type": "object", "properties": members}})

    tree = {"$ref": "#/x/Tree"}
    assert not Comparison(nested("string"), nested("string"), Side.REQUEST).differences(tree, tree)
    found = Comparison(nested("string"), nested("boolean"), Side.REQUEST).differences(tree, tree)
    assert {(one.name, one.inner, one.rule) for one in found} == {
        ("Tree", ("value",), "type-removed"),
        ("Tree", ("value",), "type-added"),
    }


def test_a_reference_that_leads_to_itself_is_an_error() -> None:
    with pytest.raises(ValueError, match="leads to itself"):
        Shapes({"A": {"$ref": "#/x/A"}}).of({"$ref": "#/x/A"})
