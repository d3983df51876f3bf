"""MiniMax M3's tags: a token stands before each, and the one that ends a value has its name."""

from __future__ import annotations

import json

import pytest

from inference.errors import ToolRefused
from inference.tools.formats import ToolFormat, with_tokens
from inference.tools.grammar import call_grammar
from inference.tools.history import written
from inference.tools.known_formats import FORMATS
from inference.tools.types import Tool
from tests.unit.inference_tools.answers import calls_of, events, pieces_of, plain, split, text_of, whole
from tests.unit.inference_tools.grammars import accepts, compiled, ids_of, parsed, use
from tests.unit.inference_tools.native import tagged

NAMESPACE = "]<]minimax[>["
MARKED = with_tokens(FORMATS["minimax_m3"], {NAMESPACE: 0, "<|silent|>": 1})
STRING = {"type": "string"}
SET = Tool(name="set", parameters={"properties": {"a": STRING, "ab": STRING, "n": {"type": "integer"}}})
forms = pytest.mark.parametrize("fmt", [MARKED, plain("minimax_m3")], ids=["token", "text"])


def test_the_token_alone_is_the_sign() -> None:
    assert (MARKED.lead, MARKED.opening[0].text, MARKED.opening[0].id) == ("", NAMESPACE, 0)
    for size in range(1, 9):
        pieces = ["Hm. <", *split(MARKED, tagged("minimax_m3", [("set", {})]))]
        parts = whole(MARKED, use(SET), events(pieces_of(pieces, [size])))
        assert text_of(parts) == "Hm. <"
        assert [call.arguments for call in calls_of(parts)] == ["{}"]


@pytest.mark.parametrize("text", ["", "</a>", "</ab>", "x</", "<ab>", "]<]minimax", "/", "\n"])
def test_a_value_ends_at_the_end_of_its_own_name_alone(text: str) -> None:
    given = {"a": text, "ab": f"{text}b", "n": 1}
    made = tagged("minimax_m3", [("set", given), ("set", {})], {"a", "ab"})
    for fmt in (MARKED, plain("minimax_m3")):
        pieces = split(fmt, made)
        assert accepts(compiled(call_grammar(fmt, use(SET))), pieces)
        for size in (1, 2, 5, 100):
            call, other = calls_of(whole(fmt, use(SET), events(pieces_of(pieces, [size]))))
            assert (json.loads(call.arguments), other.arguments) == (given, "{}")


@forms
def test_a_value_is_not_ended_by_another_name(fmt: ToolFormat) -> None:
    made = tagged("minimax_m3", [("set", {"n": 1})]).replace("</n>", "</a>")
    assert not accepts(compiled(call_grammar(fmt, use(SET))), split(fmt, made))


@forms
def test_values_that_are_no_texts_are_json(fmt: ToolFormat) -> None:
    deep = {"type": "object", "properties": {"item": {"type": "array", "items": STRING}}}
    tool_use = use(Tool(name="set", parameters={"properties": {"o": deep}}))
    made = tagged("minimax_m3", [("set", {"o": {"item": ["</o>", "]"]}})])
    assert accepts(compiled(call_grammar(fmt, tool_use)), split(fmt, made))
    (call,) = calls_of(parsed(fmt, tool_use, ids_of(split(fmt, made))))
    assert json.loads(call.arguments) == {"o": {"item": ["</o>", "]"]}}


def test_calls_that_are_written_back_end_with_their_names() -> None:
    call = {"function": {"name": "f", "arguments": {"a": "x", "b": [1]}}}
    assert written(MARKED, [call]) == tagged("minimax_m3", [("f", {"a": "x", "b": [1]})], {"a"})


def test_names_that_no_schema_lists_are_left_out_or_refused() -> None:
    parameters = {"properties": {"a": STRING}, "additionalProperties": STRING}
    told = call_grammar(MARKED, use(Tool(name="f", parameters=parameters)))
    assert told.left_out == ("tools[].function.parameters.additionalProperties",)
    with pytest.raises(ToolRefused, match="`additionalProperties`"):
        call_grammar(MARKED, use(Tool(name="f", parameters=parameters, strict=True)))
