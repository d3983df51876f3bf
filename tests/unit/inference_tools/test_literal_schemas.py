"""Arguments as literals: what is made of schemas around and below them, and what is refused."""

from __future__ import annotations

import json
from functools import partial
from typing import Any

import pytest

from inference.errors import GrammarRefused, ToolRefused
from inference.tools.grammar import call_grammar
from inference.tools.history import written
from inference.tools.types import Tool
from tests.unit.inference_tools.answers import calls_of, plain
from tests.unit.inference_tools.grammars import accepts, compiled, ids_of, parsed, use
from tests.unit.inference_tools.native_literals import LITERAL_FORMATS, literal_calls

STRING, NULL, INTEGER = {"type": "string"}, {"type": "null"}, {"type": "integer"}
CROSSED = {"type": "integer", "minimum": 3, "maximum": 1}  # nothing
NODE = {"properties": {"v": INTEGER, "next": {"$ref": "#/$defs/node"}}, "required": ["v"]}
TAGGED = [
    {"properties": {"kind": {"const": kind}, "a": of}, "required": ["kind"]}
    for kind, of in (("s", STRING), ("i", INTEGER))
]


@pytest.mark.parametrize(
    ("parameters", "valid", "invalid"),
    [
        ({"type": "object"}, {}, {"a": 1}),
        ({"type": "object", "additionalProperties": True}, {"a": 1, "b": [None, {"c": "x"}]}, None),
        ({"additionalProperties": STRING}, {"a": '{"'}, {"a": 1}),
        (
            {"properties": {"a": STRING}, "additionalProperties": INTEGER},
            {"a": "x", "b": 1, "c": 2},
            {"a": 1},
        ),
        (
            {"properties": {"o": {"properties": {"a": STRING}, "additionalProperties": INTEGER}}},
            {"o": {"a": "x", "b": 1}},
            {"o": {"a": 1}},
        ),
        ({"properties": {"a": {}}, "required": ["b"]}, {"b": 1}, {"a": 1}),
        ({"$ref": "#/$defs/o", "$defs": {"o": {"properties": {"a": STRING}}}}, {"a": "x"}, {"b": 1}),
        (
            {"anyOf": [{"properties": {"a": STRING}, "required": ["a"]}, {"properties": {"b": NULL}}]},
            {"b": None},
            {"a": "x", "b": None},
        ),
        (
            {"allOf": [{"properties": {"a": STRING}}, {"properties": {"n": INTEGER}}]},
            {"a": "x", "n": 1},
            {"a": "x", "n": 1.5},
        ),
        (
            {"properties": {"n": {"$ref": "#/$defs/node"}}, "$defs": {"node": NODE}},
            {"n": {"v": 1, "next": {"v": 2, "next": {"v": 3}}}},
            {"n": {"v": 1, "next": {"next": {"v": 3}}}},
        ),
        (
            {"properties": {"o": {"oneOf": TAGGED}}},
            {"o": {"kind": "i", "a": 1}},
            {"o": {"kind": "s", "a": 1}},
        ),
        (
            {"properties": {"o": {"type": "object", "additionalProperties": INTEGER}}},
            {"o": {"x": 1, "y-z": 2}},
            {"o": {"x": "1"}},
        ),
        (
            {"properties": {"o": {"properties": {"a b:": STRING, "é": STRING}}}},
            {"o": {}},
            {"o": {"c": ""}},
        ),
        (
            {"properties": {"l": {"type": "array", "items": {"type": "array", "items": NULL}}}},
            {"l": [[None], []]},
            {"l": [None]},
        ),
        ({"properties": {"l": {"type": "array", "maxItems": 0}}}, {"l": []}, {"l": [1]}),
        ({"properties": {"l": {"type": "array", "maxItems": 1}}}, {"l": []}, {"l": [1, 2]}),
        ({"properties": {"l": {"type": "array", "maxItems": 1, "minItems": 1}}}, {"l": [1]}, {"l": []}),
        ({"properties": {"l": {"anyOf": [STRING, {"enum": []}]}}}, {"l": "x"}, {"l": 1}),
        ({"properties": {"l": {"anyOf": [STRING, CROSSED]}}}, {"l": "x"}, {"l": 1}),
        ({"properties": {"l": {"type": "array", "items": CROSSED}}}, {"l": []}, {"l": [2]}),
        (
            {"properties": {"l": {"type": ["array", "null"], "items": {"enum": [1, 2]}}}},
            {"l": None},
            {"l": [3]},
        ),
        ({"properties": {"x": {"type": ["number", "integer"], "minimum": 2}}}, {"x": 2.5}, {"x": 1}),
    ],
)
def test_schemas_around_and_below_the_arguments(
    parameters: dict[str, Any], valid: dict[str, Any], invalid: dict[str, Any] | None
) -> None:
    for name in LITERAL_FORMATS:
        tool_use = use(Tool(name="f", parameters=parameters))
        grammar = compiled(call_grammar(plain(name), tool_use))
        text = literal_calls(name, [("f", valid)])
        assert accepts(grammar, [text]), text
        (call,) = calls_of(parsed(plain(name), tool_use, ids_of([text])))
        assert json.loads(call.arguments) == valid
        assert invalid is None or not accepts(grammar, [literal_calls(name, [("f", invalid)])])


@pytest.mark.parametrize(
    ("schema", "valid", "invalid"),
    [
        ({"type": "array", "prefixItems": [INTEGER, NULL], "minItems": 2}, "[1, null]", "[null, 1]"),
        ({"type": "string", "format": "ipv6"}, '"::1"', '"x"'),
        (
            {"type": "object", "patternProperties": {"^a": NULL}, "additionalProperties": False},
            '{"ab": null}',
            '{"b": 1}',
        ),
        ({"enum": [{"a": ["x"]}, [1]]}, '{"a": ["x"]}', '{"a": []}'),
        ({"type": "object", "additionalProperties": NULL, "minProperties": 1}, '{"b": null}', "{}"),
        ({"allOf": [{"minimum": 3, "type": "integer"}, {"maximum": 4}]}, "4", "5"),
    ],
)
def test_what_literals_have_no_rules_for_is_held_as_json(
    schema: dict[str, Any], valid: str, invalid: str
) -> None:
    tool_use = use(Tool(name="f", parameters={"properties": {"a": schema}, "required": ["a"]}))
    for name in LITERAL_FORMATS:
        grammar = compiled(call_grammar(plain(name), tool_use))
        made = literal_calls(name, [("f", {"a": 0})])
        before, _, behind = made.rpartition("0")
        assert accepts(grammar, [before + valid + behind])
        assert not accepts(grammar, [before + invalid + behind])
        (call,) = calls_of(parsed(plain(name), tool_use, ids_of([before + valid + behind])))
        assert json.loads(call.arguments) == {"a": json.loads(valid)}


@pytest.mark.parametrize(
    "word", [{"minProperties": 3}, {"enum": [{"a": "x"}]}, {"patternProperties": {"^b": NULL}}]
)
def test_words_about_the_arguments_as_a_whole_are_left_out_and_named_or_refused(word: dict[str, Any]) -> None:
    parameters = {"type": "object", "properties": {"a": STRING}, **word}
    (left_out,) = call_grammar(plain("lfm2"), use(Tool(name="f", parameters=parameters))).left_out
    assert left_out == f"tools[].function.parameters.{min(word)}"
    with pytest.raises((GrammarRefused, ToolRefused)) as refusal:
        call_grammar(plain("lfm2"), use(Tool(name="f", parameters=parameters, strict=True)))
    assert min(word) in str(refusal.value)


@pytest.mark.parametrize("form", LITERAL_FORMATS)
def test_arguments_may_have_any_names(form: str) -> None:
    names = ["", "a b", "a=", "1a", "a:b", "größe", 'a"', "content-type", "\n", "\\'"]
    tool = Tool(name="f", parameters={"properties": dict.fromkeys(names, INTEGER), "required": names})
    said = {name: at for at, name in enumerate(names)}
    text = literal_calls(form, [("f", said)], partial(json.dumps, ensure_ascii=False))
    assert ",größe" in text.replace(" ", "")
    assert accepts(compiled(call_grammar(plain(form), use(tool))), [text])
    (call,) = calls_of(parsed(plain(form), use(tool), ids_of([text])))
    assert json.loads(call.arguments) == said


@pytest.mark.parametrize(
    ("form", "name"),
    [("pythonic", "f("), ("lfm2", "f(x"), ("gemma", "f{"), ("olmo", "<function_calls>")],
)
def test_a_name_that_the_notation_would_end_is_refused(form: str, name: str) -> None:
    with pytest.raises(ToolRefused, match="by which this model ends names"):
        call_grammar(plain(form), use(Tool(name=name)))


@pytest.mark.parametrize("form", ["pythonic", "gemma"])
def test_no_arguments_that_are_valid_is_an_error(form: str) -> None:
    with pytest.raises((GrammarRefused, ToolRefused)):
        call_grammar(
            plain(form), use(Tool(name="f", parameters={"properties": {"a": False}, "required": ["a"]}))
        )


def test_values_within_each_other_are_json_below_a_depth() -> None:
    schema: dict[str, Any] = INTEGER
    value: Any = 7
    for _ in range(40):
        schema, value = {"type": "array", "items": schema}, [value]
    tool_use = use(Tool(name="f", parameters={"properties": {"a": schema}}))
    for name in ("lfm2", "gemma"):
        text = literal_calls(name, [("f", {"a": value})])
        assert accepts(compiled(call_grammar(plain(name), tool_use)), [text])
        (call,) = calls_of(parsed(plain(name), tool_use, ids_of([text])))
        assert json.loads(call.arguments) == {"a": value}


def test_names_within_values_may_be_any() -> None:
    names = ["a b", "", "é:", 'q"', "\\'", "x]", "n"]
    inner = {"properties": dict.fromkeys(names, INTEGER), "required": [*names]}
    tool_use = use(Tool(name="f", parameters={"properties": {"o": inner}}))
    said = {"o": {name: at for at, name in enumerate(names)}}
    for name in LITERAL_FORMATS:
        text = written(plain(name), [{"function": {"name": "f", "arguments": said}}])
        assert accepts(compiled(call_grammar(plain(name), tool_use)), [text])
        (call,) = calls_of(parsed(plain(name), tool_use, ids_of([text])))
        assert json.loads(call.arguments) == said


def test_texts_below_that_depth_have_the_quotes_of_json() -> None:
    schema: dict[str, Any] = STRING
    for _ in range(40):
        schema = {"type": "array", "items": schema}
    grammar = compiled(
        call_grammar(plain("gemma"), use(Tool(name="f", parameters={"properties": {"a": schema}})))
    )
    made = literal_calls("gemma", [("f", {"a": "#"})])
    for text, is_valid in (('"x"', True), ('<|"|>x<|"|>', False)):
        nested = "[" * 40 + text + "]" * 40
        assert accepts(grammar, [made.replace('<|"|>#<|"|>', nested)]) == is_valid


def test_schemas_that_would_be_too_large_a_grammar_are_refused() -> None:
    listed = {"type": "object", "properties": {"n" * 400 + str(at): STRING for at in range(90)}}
    wide = {f"p{at}": {"allOf": [{"$ref": "#/$defs/d"}, {"maxProperties": 9 + at}]} for at in range(40)}
    tool = Tool(name="f", parameters={"properties": wide, "$defs": {"d": listed}})
    for name in ("lfm2", "gemma"):
        with pytest.raises(ToolRefused, match="too large together"):
            call_grammar(plain(name), use(tool))
