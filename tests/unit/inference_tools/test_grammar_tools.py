from __future__ import annotations

from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from inference.errors import GrammarRefused, Member, ToolRefused
from inference.grammar.schema import LIMITS
from inference.tools.grammar import arguments_schema, call_grammar, marker_in
from inference.tools.types import Tool, ToolUse
from tests.unit.inference_tools.answers import (
    Call,
    as_json,
    calls_of,
    plain,
    written,
)
from tests.unit.inference_tools.grammars import (
    FORMS,
    NOW,
    accepts,
    compiled,
    ids_of,
    parsed,
    use,
)
from tests.unit.inference_tools.native import JSON_FORMATS


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.text(min_size=1, max_size=8), min_size=1, max_size=4, unique=True),
    st.sampled_from(sorted(FORMS)),
)
@example(names=["[ARGS]"], form="mistral_args")
def test_tools_may_have_any_names(names: list[str], form: str) -> None:
    fmt, tool_use = FORMS[form], use(*(Tool(name=name) for name in names))
    calls = [Call(name, "{}") for name in names]
    if any("\ud800" <= char <= "\udfff" for name in names for char in name):
        with pytest.raises(ToolRefused, match="surrogate"):
            call_grammar(fmt, tool_use)
        return
    if fmt.name_end is not None and any(marker_in(fmt, name) for name in names):
        with pytest.raises(ToolRefused, match="by which this model ends names"):
            call_grammar(fmt, tool_use)
        return
    pieces = written(fmt, calls)
    assert accepts(compiled(call_grammar(fmt, tool_use)), pieces)
    assert calls_of(parsed(fmt, tool_use, ids_of(pieces))) == calls


@pytest.mark.parametrize(
    ("parameters", "arguments", "is_valid"),
    [
        ({}, {}, True),
        ({}, {"any": 1}, False),
        ({"type": "object"}, {"any": 1}, False),
        ({"type": "object", "title": "F", "$defs": {"x": {}}}, {"any": 1}, False),
        ({"type": "object", "additionalProperties": False}, {"any": 1}, False),
        ({"type": "object", "additionalProperties": True}, {"any": 1}, True),
        ({"additionalProperties": {"type": "integer"}}, {"any": 1}, True),
        ({"patternProperties": {"^a": {"type": "integer"}}}, {"any": 1}, True),
        ({"required": ["any"]}, {"any": 1}, True),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"type": "object"}}}, {"any": 1}, True),
        ({"anyOf": [{"type": "object"}, {"type": "null"}]}, {"any": 1}, True),
        ({"type": "object", "properties": {}}, {}, True),
        ({"type": "object", "properties": {}}, {"any": 1}, False),
        ({"properties": {"a": {"type": "integer"}}}, {"a": 1}, True),
        ({"properties": {"a": {"type": "integer"}}, "required": ["b"]}, {"b": None}, True),
        ({"type": "object", "properties": {"a": {}}, "additionalProperties": True}, {"b": 1}, True),
        ({"type": ["object", "null"], "properties": {"a": {}}}, {"a": [1]}, True),
        (
            {"$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "properties": {"a": {"const": 1}}}}},
            {"a": 1},
            True,
        ),
        (
            {
                "type": "object",
                "properties": {"t": {"$ref": "#/definitions/tree"}},
                "definitions": {
                    "tree": {
                        "type": "object",
                        "properties": {
                            "v": {"type": "integer"},
                            "k": {"items": {"$ref": "#/definitions/tree"}},
                        },
                        "required": ["v"],
                        "additionalProperties": False,
                    }
                },
            },
            {"t": {"v": 1, "k": [{"v": 2}]}},
            True,
        ),
    ],
)
def test_arguments_follow_the_tools_schema(
    parameters: dict[str, Any], arguments: dict[str, Any], is_valid: bool
) -> None:
    fmt = FORMS["hermes"]
    grammar = compiled(call_grammar(fmt, use(Tool(name="f", parameters=parameters))))
    assert accepts(grammar, written(fmt, [Call("f", as_json(arguments))])) == is_valid


def test_each_tool_keeps_its_own_definitions() -> None:
    tools = tuple(
        Tool(
            name=f"f{at}",
            parameters={
                "type": "object",
                "properties": {"a": {"$ref": "#/$defs/x"}},
                "$defs": {"x": {"const": at}},
            },
        )
        for at in range(2)
    )
    grammar = compiled(call_grammar(FORMS["hermes"], use(*tools)))
    for at in range(2):
        assert accepts(grammar, written(FORMS["hermes"], [Call(f"f{at}", f'{{"a": {at}}}')]))
        assert not accepts(grammar, written(FORMS["hermes"], [Call(f"f{at}", f'{{"a": {1 - at}}}')]))


@pytest.mark.parametrize(
    ("tools", "problem"),
    [
        ((NOW, NOW), "two functions named 'now'"),
        ((Tool(name=""),), "empty `name`"),
        ((Tool(name="\ud800"),), "half a surrogate pair"),
        ((Tool(name="f", parameters={"type": "string"}),), "Its `type` is 'string': set it to 'object'"),
        (
            (Tool(name="f", parameters={"city": {"type": "string"}}),),
            "the `parameters` of the function 'f' have no keyword of JSON Schema: give the schema of an "
            "object, with the arguments in `properties`",
        ),
        ((Tool(name="f", parameters={"type": ["array", "null"]}),), "must be the JSON Schema of an object"),
    ],
)
def test_tools_that_cannot_be_called_are_refused(tools: tuple[Tool, ...], problem: str) -> None:
    with pytest.raises(ToolRefused) as refusal:
        call_grammar(FORMS["hermes"], use(*tools))
    assert problem in str(refusal.value)


def test_no_tools_are_refused() -> None:
    with pytest.raises(ToolRefused, match="`tools` is empty"):
        call_grammar(FORMS["hermes"], ToolUse(tools=(), required=True, parallel=True))


def test_a_bare_name_cannot_hold_what_ends_it() -> None:
    with pytest.raises(ToolRefused, match=r"contains '\[ARGS\]'"):
        call_grammar(FORMS["mistral_args"], use(Tool(name="f[ARGS]")))
    rules = call_grammar(FORMS["hermes"], use(Tool(name="f[ARGS]"))).source.splitlines()
    assert not any("f[ARGS]" in rule for rule in rules if not rule.startswith("//"))


def test_a_schema_that_is_not_supported_is_refused_with_tool_and_pointer() -> None:
    parameters = {"type": "object", "properties": {"a": {"$ref": "https://example.com/schema.json"}}}
    with pytest.raises(GrammarRefused) as refusal:
        call_grammar(FORMS["hermes"], use(NOW, Tool(name="f", parameters=parameters)))
    assert "tools['f'].function.parameters" in str(refusal.value)
    assert "/properties/a" in str(refusal.value)


def test_what_shows_when_it_is_compiled_is_said_of_the_tool_that_has_it() -> None:
    alike = {"oneOf": [{"type": "string", "minLength": 1}, {"type": "string", "maxLength": 3}]}
    tool = Tool(name="f", parameters=alike | {"type": "object"}, strict=True, at="tools[2].tools[1]")
    with pytest.raises(GrammarRefused) as refusal:
        compiled(call_grammar(FORMS["hermes"], use(NOW, tool)))
    assert refusal.value.member == Member("tools[2].tools[1].parameters", "`tools[].tools['f'].parameters`")


def test_many_tools_fit() -> None:
    tools = tuple(
        Tool(
            name=f"tool_{at}",
            parameters={
                "type": "object",
                "properties": {f"p{i}": {"type": "string"} for i in range(5)},
                "required": ["p0"],
            },
        )
        for at in range(128)
    )
    # The other formats of JSON have the same rules as some of these
    for form in FORMS.keys() - JSON_FORMATS.keys() | {"kimi"}:
        grammar = compiled(call_grammar(FORMS[form], use(*tools)))
        assert accepts(grammar, written(FORMS[form], [Call("tool_77", '{"p0": "x"}')]))


@pytest.mark.parametrize(
    "word",
    [
        {"dependentRequired": {"a": ["b"]}},
        {"not": {"required": ["a"]}},
        {"if": {"required": ["a"]}, "then": {"required": ["b"]}},
        {"minProperties": 3},
        {"unevaluatedProperties": {"type": "string"}},
    ],
)
def test_a_word_that_is_left_out_leaves_the_arguments_as_if_it_had_not_been_there(
    word: dict[str, Any],
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "null"}}}
    plain, none = arguments_schema(Tool(name="f", parameters=schema), LIMITS)
    less, lost = arguments_schema(Tool(name="f", parameters={**schema, **word}), LIMITS)
    assert (plain, none) == ({**schema, "additionalProperties": False}, ())
    assert (less, set(lost)) == (plain, set(word))


def test_a_format_of_one_call_has_no_second_one() -> None:
    fmt = plain("gigachat")
    one, two = (written(fmt, [Call("now", "{}")] * count) for count in (1, 2))
    grammar = compiled(call_grammar(fmt, use(NOW)))
    assert accepts(grammar, one)
    assert accepts(grammar, ["Hm.\n", *one[1:]])
    assert not accepts(grammar, two)
