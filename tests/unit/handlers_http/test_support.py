"""Members with and without effect, by the document's own marks."""

from __future__ import annotations

from typing import Any

import pytest
from jsonschema import Draft4Validator

from handlers.http.errors import Refused
from handlers.http.support import SupportRules, header_value, merged
from openapi.schema import to_draft4

COMPONENTS: dict[str, Any] = {
    "schemas": {
        "Node": {
            "properties": {
                "children": {"type": "array", "items": {"$ref": "#/components/schemas/Node"}},
                "label": {"type": "string", "x-support": "reported", "x-neutral": [""]},
                "colour": {"type": "string", "x-support": "later", "x-neutral": ["none"]},
            },
        },
        "Later": {"type": "object", "x-support": "later", "properties": {"deep": {"x-support": "later"}}},
    }
}


def rules(schema: dict[str, Any]) -> SupportRules:
    """Compile rules."""
    return SupportRules(
        schema, COMPONENTS, lambda part: Draft4Validator(to_draft4(part, COMPONENTS)).is_valid
    )


def properties(**members: Any) -> dict[str, Any]:
    """Return the schema of an object."""
    return {"type": "object", "properties": members}


NODE = {"$ref": "#/components/schemas/Node"}
ONE_OR_OTHER = properties(
    of={
        "type": "array",
        "items": {
            "anyOf": [
                {**properties(a={"type": "string"}), "required": ["a"]},
                {**properties(b={"type": "string"}), "required": ["b"]},
            ]
        },
    }
)


@pytest.mark.parametrize(
    ("schema", "body", "ignored"),
    [
        (properties(a={}), {"a": {"anything": 1}}, ()),
        (properties(a={}), {"b": 1, "a": 1}, ("b",)),
        (properties(a={"x-support": "reported"}), {"a": 1}, ("a",)),
        (properties(a={"x-support": "reported"}), {"a": None}, ()),
        (properties(a={"x-support": "reported", "x-neutral": [False]}), {"a": False}, ()),
        (properties(a={"x-support": "reported", "x-neutral": [False]}), {"a": 0}, ("a",)),
        (properties(a={"type": "object"}), {"a": {"b": 1}}, ()),
        (properties(a={"type": "object", "additionalProperties": {"type": "number"}}), {"a": {"b": 1}}, ()),
        (properties(a=properties(b={})), {"a": {"b": 1, "c": 1}}, ("a.c",)),
        (properties(a={"anyOf": [properties(b={}), {"type": "string"}]}), {"a": {"c": 1}}, ("a.c",)),
        (properties(a={"anyOf": [properties(b={}), {"type": "string"}]}), {"a": "c"}, ()),
        (NODE, {"label": "", "children": [{"label": "x"}, {"y": 1, "children": [{"z": 1}]}]}, (
            "children[].children[].z", "children[].label", "children[].y",
        )),
        (
            {"anyOf": [{**properties(a={}), "required": ["a"]}, {**properties(b={}), "required": ["b"]}]},
            {"a": 1, "b": 1},
            ("b",),
        ),
        (
            {"anyOf": [{**properties(a={}), "required": ["a"]}, {**properties(b={}), "required": ["b"]}]},
            {"b": 1, "c": 1},
            ("c",),
        ),
        (properties(a={"x-support": "descriptive"}), {"a": {"b": 1}}, ()),
        (ONE_OR_OTHER, {"of": [{"a": 1, "b": "x"}]}, ("of[].a",)),
        (ONE_OR_OTHER, {"of": [{"a": "x", "b": 1}]}, ("of[].b",)),
    ],
)  # fmt: skip
def test_members_without_effect_are_found(
    schema: dict[str, Any], body: Any, ignored: tuple[str, ...]
) -> None:
    assert rules(schema).check(body) == ignored


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"colour": "red"}, '`colour` is not supported yet; leave it out or send "none" or null'),
        (
            {"children": [{"colour": 1}]},
            '`children[0].colour` is not supported yet; leave it out or send "none"',
        ),
    ],
)
def test_a_member_that_comes_later_is_refused(body: Any, message: str) -> None:
    with pytest.raises(Refused) as refused:
        rules(NODE).check(body)
    assert str(refused.value).startswith(f"Input validation error: {message}")
    assert (refused.value.status, refused.value.error_type) == (422, "validation")


@pytest.mark.parametrize("value", ["none", None])
def test_a_neutral_value_asks_for_nothing(value: Any) -> None:
    assert rules(NODE).check({"colour": value}) == ()


def test_what_means_the_same_in_this_server_asks_for_nothing_either() -> None:
    schema = properties(
        kind={"x-support": "reported", "x-neutral": ["usual"]},
        label={"x-support": "reported", "x-default": 1},
    )
    known = SupportRules(
        schema, {}, lambda part: Draft4Validator(part).is_valid, {"usual": ("ours", "another")}
    )
    for kind in ("usual", "ours", "another"):
        assert known.check({"kind": kind}) == ()
    assert known.check({"kind": "theirs", "label": "ours"}) == ("kind", "label")


def test_a_mark_on_a_component_counts_where_it_is_referred_to() -> None:
    with pytest.raises(Refused, match="`a` is not supported yet"):
        rules(properties(a={"$ref": "#/components/schemas/Later"})).check({"a": {"deep": 1}})


def test_a_mark_beside_the_reference_wins() -> None:
    schema = properties(a={"anyOf": [{"$ref": "#/components/schemas/Later"}], "x-support": "reported"})
    assert rules(schema).check({"a": {"deep": 1}}) == ("a",)


def test_the_documents_own_words_for_a_refusal_are_used() -> None:
    error = {"error": "No.", "error_type": "tool_error"}
    schema = properties(a={"x-support": "refused", "x-reason": "x", "x-error": error})
    with pytest.raises(Refused, match=r"^No\.$") as refused:
        rules(schema).check({"a": 1})
    assert refused.value.error_type == "tool_error"


def test_of_several_the_first_in_the_body_is_told() -> None:
    schema = properties(**{name: {"x-support": "later"} for name in "abcdefgh"})
    for name in "hdb":
        with pytest.raises(Refused, match=f"`{name}` is not supported yet"):
            rules(schema).check({name: 1, **dict.fromkeys("abcdefgh", 1)})


NO_BOTH = {"b": {"error": "Not both.", "error_type": "tool_error"}}


@pytest.mark.parametrize("support", ["honoured", "later"])
@pytest.mark.parametrize("beside", [[], [1], False])
def test_what_is_excluded_is_refused_before_anything_else(support: str, beside: Any) -> None:
    a = {"x-support": support, "x-excludes": NO_BOTH}
    schema = properties(a=a, b={"x-support": "later", "x-neutral": [[], False]}, c={"x-support": "later"})
    with pytest.raises(Refused, match=r"^Not both\.$") as refused:
        rules(schema).check({"c": 1, "b": beside, "a": 1})
    assert (refused.value.status, refused.value.error_type) == (422, "tool_error")


@pytest.mark.parametrize("body", [{"a": "off", "b": [1]}, {"a": None, "b": 1}, {"b": 1}, {"a": "off"}])
def test_a_neutral_value_excludes_nothing(body: Any) -> None:
    schema = properties(a={"x-support": "later", "x-neutral": ["off"], "x-excludes": NO_BOTH}, b={})
    assert rules(schema).check(body) == ()


def test_null_is_not_excluded() -> None:
    schema = properties(a={"x-excludes": NO_BOTH}, b={})
    assert rules(schema).check({"a": 1, "b": None}) == ()


WITHOUT = {
    "x-support": "honoured",
    "x-without-effect": ["form", "deep"],
    "type": "array",
    "items": {
        "anyOf": [
            properties(form={"x-default": "plain"}, deep=properties(er={}), other={}),
            {"type": "object", "nullable": True, "enum": [None]},
        ]
    },
}


@pytest.mark.parametrize(
    ("member", "ignored"),
    [
        ({"form": "wide"}, ("a[].form",)),
        ({"form": "plain"}, ()),
        ({"form": None}, ()),
        ({"deep": {"er": 1, "x": 2}}, ("a[].deep",)),
        ({"other": 1}, ()),
    ],
)
def test_a_member_without_effect_at_one_place_is_reported_there(member: Any, ignored: Any) -> None:
    assert rules(properties(a=WITHOUT)).check({"a": [member, None]}) == ignored


def test_what_has_no_effect_at_one_place_has_it_elsewhere() -> None:
    node = {"type": "array", "items": NODE, "x-without-effect": ["children"]}
    body = [{"children": [{"x": 1}]}]
    assert rules(properties(a=node, b=NODE)).check({"a": body, "b": body[0]}) == (
        "a[].children",
        "b.children[].x",
    )


def test_an_unknown_mark_is_an_error_at_the_start() -> None:
    with pytest.raises(ValueError, match="x-support of `a` is 'maybe'"):
        rules(properties(a={"x-support": "maybe"}))


@pytest.mark.parametrize(
    ("names", "value"),
    [
        (("b.c", "a", "b.c"), "a,b.c"),
        (("a,b", "c d", "é\n"), "??,a?b,c?d"),
        (("x" * 100, "y"), "x" * 100 + ",y"),
        (("x" * 101, "y"), "x" * 97 + "...,y"),
        (("a", "é" * 5000, "z"), "?" * 97 + "...,a,z"),
        (
            tuple(letter * 200 for letter in "abcdefghijkl"),
            ",".join([*(c * 97 + "..." for c in "abcdefghi"), "..."]),
        ),
        (tuple(f"n{at:02}" for at in range(20)), ",".join(f"n{at:02}" for at in range(20))),
        (tuple(f"n{at:02}" for at in range(21)), ",".join([*(f"n{at:02}" for at in range(20)), "..."])),
    ],
)
def test_the_headers_value_is_safe_and_short(names: tuple[str, ...], value: str) -> None:
    assert header_value(names) == value
    assert header_value(value.split(",")) == value
    assert len(value) < 1100


def test_the_values_of_two_layers_are_one_list_within_the_bounds() -> None:
    first, second = ([f"{letter}{at:02}" for at in range(15)] for letter in "ab")
    assert merged(["b,a", "c,a"]) == "a,b,c"
    assert merged([",".join(second), ",".join(first)]) == ",".join([*first, *second[:5], "..."])
    assert merged([header_value(["x" * 2000]), "a"]) == "a," + "x" * 97 + "..."


def test_of_more_names_than_are_collected_the_rest_is_said() -> None:
    alike = {"x" * 100 + str(at): 1 for at in range(1_000)}
    assert header_value(rules(properties()).check({**alike, "y": 1})) == "...".join(("x" * 97, ",", ""))
