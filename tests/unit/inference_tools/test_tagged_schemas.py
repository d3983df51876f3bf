"""Arguments in tags: what is made of the schemas around their properties, and what is refused."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from inference.errors import GrammarRefused, Member, ToolRefused
from inference.tools.grammar import call_grammar
from inference.tools.types import Tool
from tests.unit.inference_tools.answers import calls_of, plain
from tests.unit.inference_tools.grammars import accepts, begins, compiled, ids_of, parsed, use
from tests.unit.inference_tools.native import TAGGED, tagged

STRING, NULL = {"type": "string"}, {"type": "null"}
NOW = Tool(name="now")


@pytest.mark.parametrize(
    ("parameters", "valid", "invalid"),
    [
        ({"type": "object"}, {}, {"a": 1}),
        ({"type": "object", "additionalProperties": True}, {"a": 1, "b": [None]}, None),
        ({"additionalProperties": STRING}, {"a": '{"'}, None),
        (
            {"properties": {"a": STRING}, "additionalProperties": {"type": "integer"}},
            {"a": "x", "b": 1},
            {"b": "x"},
        ),
        ({"properties": {"a": {}}, "required": ["b"]}, {"b": 1}, {"a": 1}),
        ({"$ref": "#/$defs/o", "$defs": {"o": {"properties": {"a": STRING}}}}, {"a": "x"}, {"b": 1}),
        (
            {"anyOf": [{"properties": {"a": STRING}, "required": ["a"]}, {"properties": {"b": NULL}}]},
            {"b": None},
            {"a": "x", "b": None},
        ),
        (
            {"properties": {"a": STRING, "b": STRING}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
            {"b": "x"},
            {},
        ),
        (
            {"allOf": [{"properties": {"a": STRING}}, {"properties": {"n": {"type": "integer"}}}]},
            {"a": "x", "n": 1},
            {"a": "x", "n": 1.5},
        ),
        (
            {
                "properties": {
                    "n": {"type": "object", "properties": {"next": {"$ref": "#/properties/n"}}},
                }
            },
            {"n": {"next": {"next": {}}}},
            {"n": {"next": {"next": 1}}},
        ),
    ],
)
def test_schemas_around_the_properties(
    parameters: dict[str, Any], valid: dict[str, Any], invalid: dict[str, Any] | None
) -> None:
    texts = {name for name, value in valid.items() if isinstance(value, str)}
    for name in TAGGED:
        tool_use = use(Tool(name="f", parameters=parameters))
        told = call_grammar(plain(name), tool_use)
        if told.left_out:  # whose tags end with the names that they begin with
            assert name == "minimax_m3"
            assert told.left_out == ("tools[].function.parameters.additionalProperties",)
            continue
        grammar = compiled(told)
        text = tagged(name, [("f", valid)], texts)
        assert accepts(grammar, [text]), text
        (call,) = calls_of(parsed(plain(name), tool_use, ids_of([text])))
        assert json.loads(call.arguments) == valid
        assert invalid is None or not accepts(grammar, [tagged(name, [("f", invalid)], texts)])


@pytest.mark.parametrize(
    "word", [{"minProperties": 3}, {"enum": [{"a": "x"}]}, {"patternProperties": {"^b": NULL}}]
)
def test_words_about_the_arguments_as_a_whole_are_left_out_and_named_or_refused(word: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": {"a": STRING}, **word}
    (left_out,) = call_grammar(plain("qwen"), use(Tool(name="f", parameters=parameters))).left_out
    assert left_out == f"tools[].function.parameters.{min(word)}"
    with pytest.raises((GrammarRefused, ToolRefused)) as refusal:
        call_grammar(plain("qwen"), use(Tool(name="f", parameters=parameters, strict=True)))
    assert min(word) in str(refusal.value)


@pytest.mark.parametrize(
    ("form", "name"),
    [
        *(("qwen", "a>\nb"), ("glm", "a</arg_key>"), ("minimax", 'a">b'), ("seed", "a>b")),
        *(("minimax_m3", "a>b"), ("minimax_m3", "/a"), ("deepseek_v32", 'a" string="')),
    ],
)
def test_a_property_whose_name_the_notation_would_end_is_refused(form: str, name: str) -> None:
    tool = Tool(name="f", parameters={"properties": {name: STRING}})
    with pytest.raises(ToolRefused, match=r"`tools\['f'\].function.parameters` has a property whose name"):
        call_grammar(plain(form), use(tool))


@pytest.mark.parametrize(("form", "name"), [("qwen", "f>\n"), ("glm", "f\n"), ("glm_tight", "f<arg_key>")])
def test_a_name_that_the_notation_would_end_is_refused(form: str, name: str) -> None:
    with pytest.raises(ToolRefused, match="by which this model ends names"):
        call_grammar(plain(form), use(Tool(name=name)))


@pytest.mark.parametrize("name", ["a\nstart: /x/\n", "", "😀\u2028é", "// b", 'a"b\\'])
def test_properties_may_have_other_names(name: str) -> None:
    tool_use = use(Tool(name="f", parameters={"properties": {name: {"type": "integer"}}, "required": [name]}))
    text = tagged("qwen", [("f", {name: 7})])
    assert accepts(compiled(call_grammar(plain("qwen"), tool_use)), [text])
    (call,) = calls_of(parsed(plain("qwen"), tool_use, ids_of([text])))
    assert json.loads(call.arguments) == {name: 7}


def test_too_many_ways_to_give_arguments_are_refused() -> None:
    ways = [{"properties": {f"p{at}": STRING}, "required": [f"p{at}"]} for at in range(9)]
    tool = Tool(name="f", parameters={"allOf": [{"anyOf": ways}, {"anyOf": ways}]})
    with pytest.raises(ToolRefused, match="more than 64 ways"):
        call_grammar(plain("qwen"), use(tool))


@pytest.mark.parametrize(
    "parameters",
    [
        {"anyOf": [{"$ref": "#"}, {"properties": {"a": STRING}}]},
        {
            "allOf": [{"$ref": "#/$defs/d0"}],
            "$defs": {f"d{at}": {"$ref": f"#/$defs/d{at + 1}"} for at in range(40)},
        },
        {
            "anyOf": [{"$ref": "#/$defs/d0"}] * 2,
            "$defs": {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(31)}
            | {"d31": {"type": "string"}},
        },
    ],
)
def test_schemas_that_lead_in_circles_or_far_are_refused_at_once(parameters: dict[str, Any]) -> None:
    with pytest.raises((GrammarRefused, ToolRefused)):
        call_grammar(plain("qwen"), use(Tool(name="f", parameters=parameters)))


def test_a_value_that_cannot_be_a_grammar_is_refused_with_tool_and_pointer() -> None:
    broken = {
        "type": "object",
        "properties": {"a": {"type": "object", "properties": {"b": {"minimum": "x"}}}},
    }
    with pytest.raises(GrammarRefused) as refusal:
        call_grammar(plain("qwen"), use(NOW, Tool(name="f", parameters=broken, strict=True)))
    assert "tools['f'].function.parameters" in str(refusal.value)


def test_an_argument_that_does_not_compile_is_named_beside_its_tool() -> None:
    alike = {"oneOf": [{"type": "string", "minLength": 1}, {"type": "string", "maxLength": 3}]}
    tool = Tool(
        name="f", parameters={"type": "object", "properties": {"a": alike}}, strict=True, at="tools[4]"
    )
    with pytest.raises(GrammarRefused) as refusal:
        compiled(call_grammar(plain("qwen"), use(NOW, tool)))
    assert refusal.value.member == Member("tools[4].parameters", "`tools['f'].parameters 'a'`")


DASHES = {f"{at}" + "-" * 2_000: True for at in range(30)}
TITLES = [{"title": f"{at}"} for at in range(64)]


@pytest.mark.parametrize(
    "parameters",
    [
        {"additionalProperties": True, "properties": DASHES, "anyOf": TITLES},
        {"allOf": [{"anyOf": TITLES}, *({"properties": {f"p{at}": True}} for at in range(800))]},
        {
            "allOf": [
                {"properties": {f"p{at}": True for at in range(1_500)}},
                *({"required": ["p0"]},) * 1_000,
            ]
        },
    ],
)
def test_a_grammar_that_would_be_far_larger_than_its_schema_is_refused_before_it_is_written(
    parameters: dict[str, Any],
) -> None:
    began = time.process_time()
    with pytest.raises(ToolRefused, match=r"too large together|too many properties together"):
        call_grammar(plain("qwen"), use(Tool(name="f", parameters={"type": "object", **parameters})))
    assert time.process_time() - began < 1


def test_a_large_value_that_many_parameters_refer_to_is_written_once() -> None:
    words = {"enum": ["-" * 60 + str(at) for at in range(800)]}
    properties = {f"p{at}": {"$ref": "#/$defs/e"} for at in range(300)}
    tool = Tool(name="f", parameters={"type": "object", "properties": properties, "$defs": {"e": words}})
    began = time.process_time()
    call_grammar(plain("qwen"), use(tool))
    assert time.process_time() - began < 1


def test_a_text_that_cannot_be_a_grammar_is_refused_with_tool_and_parameter() -> None:
    properties = {"\u2028": {"type": "integer"}, "a": {"type": "string", "pattern": "^a(b$"}}
    tool_use = use(NOW, Tool(name="f", parameters={"type": "object", "properties": properties}))
    with pytest.raises(GrammarRefused, match=r"`tools\['f'\].function.parameters 'a'`: the regular expr"):
        compiled(call_grammar(plain("qwen"), tool_use))


@pytest.mark.parametrize(
    "words",
    [
        {"format": "date", "maxLength": 8},
        {"format": "date", "pattern": "^x$"},
        {"enum": ["abc", "d"], "minLength": 4},
        {"enum": ["a", "b"], "const": "c"},
        {"minLength": 4, "maxLength": 3},
    ],
)
def test_a_text_that_nothing_fits_is_refused_and_no_dead_end_of_an_answer(words: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": {"a": STRING | words}, "required": ["a"]}
    with pytest.raises(GrammarRefused, match=r"parameters 'a'`: nothing is valid here"):
        compiled(call_grammar(plain("qwen"), use(Tool(name="f", parameters=parameters))))


@pytest.mark.parametrize(
    ("form", "text", "is_possible"),
    [
        ("qwen", "hi</parameter>\n</function>", False),
        ("qwen", "hi</parameter></function>", False),
        ("qwen", "hi</parameter>\n<parameter=b>", False),
        ("qwen", "hi\n</parameter><parameter=b>", False),
        ("qwen", "hi</parameter>\n</function", False),
        ("qwen", "hi</parameter>\n</func", True),
        ("qwen", "hi</parameter> </function>", True),
        ("seed", "hi</parameter></function>", False),
        ("seed", "hi</parameter><parameter=b>", False),
        ("seed", "hi</parameter> </function>", True),
        ("minimax", "hi</parameter></invoke>", False),
        ("minimax", 'hi</parameter><parameter name="b">', False),
        ("minimax", "</invoke>", True),
    ],
)
def test_a_value_does_not_go_on_behind_an_end_that_lacks_its_line_break(
    form: str, text: str, is_possible: bool
) -> None:
    properties = {"a": STRING, "b": STRING, "c": {"enum": ["</parameter></function>"]}}
    tool_use = use(Tool(name="f", parameters={"type": "object", "properties": properties, "required": ["a"]}))
    grammar = compiled(call_grammar(plain(form), tool_use))
    begun = tagged(form, [("f", {"a": "#"})], {"a"}).partition("#")[0]
    assert begins(grammar, [begun + text]) == is_possible
    assert accepts(grammar, [tagged(form, [("f", {"a": "x", "c": "</parameter></function>"})], {"a", "c"})])
