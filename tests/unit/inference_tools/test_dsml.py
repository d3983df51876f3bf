"""DeepSeek's markup: its tags have a token in them, in some models, and its values are told to be texts."""

from __future__ import annotations

import json
from typing import Any

import pytest

from inference.tools.formats import text_of as text_of_marks
from inference.tools.formats import with_tokens
from inference.tools.grammar import call_grammar
from inference.tools.history import written
from inference.tools.known_formats import FORMATS
from inference.tools.types import Tool, ToolUse
from inference.types import Grammar, GrammarKind
from tests.unit.inference_tools.answers import calls_of, events, pieces_of, plain, split, text_of, whole
from tests.unit.inference_tools.grammars import accepts, begins, compiled, ids_of, parsed, use
from tests.unit.inference_tools.native import tagged

SPECIAL = {"｜DSML｜": 0, "<|silent|>": 1}
MARKED = with_tokens(FORMATS["deepseek_v32"], SPECIAL)
STRING = {"type": "string"}
SET = Tool(name="set", parameters={"properties": {"text": STRING}, "required": ["text"]})
CALLS = tagged("deepseek_v32", [("set", {"text": "a"})], {"text"})


def test_a_token_within_marks_is_a_marker_of_its_own() -> None:
    assert (MARKED.lead, MARKED.opening[0].text, MARKED.opening[0].id) == ("<", "｜DSML｜", 0)
    assert text_of_marks(MARKED.led_opening) == text_of_marks(FORMATS["deepseek_v32"].opening)
    assert plain("deepseek_v32").lead == ""
    assert MARKED.silent_ids == (1,)


@pytest.mark.parametrize("words", ["Hm.\n\n", "a < b <\n", "", "<", "x<｜DSML｜y <", "< <"])
@pytest.mark.parametrize("required", [False, True])
def test_what_stands_before_the_token_is_part_of_the_sign(words: str, required: bool) -> None:
    if required and words:
        return
    pieces = [words.replace("<｜DSML｜", "<｜D"), *split(MARKED, CALLS)]
    said = words.replace("<｜DSML｜", "<｜D").rstrip()
    tool_use = use(SET, required=required)
    assert accepts(compiled(call_grammar(MARKED, tool_use)), pieces)
    for size in range(1, 12):
        parts = whole(MARKED, tool_use, events(pieces_of(pieces, [size])))
        assert text_of(parts) == said
        assert [json.loads(call.arguments) for call in calls_of(parts)] == [{"text": "a"}]


def test_words_that_end_as_a_sign_begins_are_shown() -> None:
    assert text_of(whole(MARKED, use(SET), events(["1 <"]))) == "1 <"
    assert text_of(whole(MARKED, use(SET), events(["1 <", 1, " 2"]))) == "1 < 2"


def test_a_token_without_the_sign_before_it_begins_no_call() -> None:
    assert not begins(compiled(call_grammar(MARKED, use(SET))), ["Hm. ", 0])


def test_beside_a_form_calls_begin_with_the_whole_sign() -> None:
    form = Grammar(kind=GrammarKind.JSON_SCHEMA, source='{"enum": ["<"]}', member="response_format")
    formed = ToolUse(tools=(SET,), required=False, parallel=True, formed=True)
    grammar = compiled(call_grammar(MARKED, formed, form=form))
    assert accepts(grammar, split(MARKED, CALLS))
    assert accepts(grammar, ['"<"'])
    parts = whole(MARKED, formed, events(split(MARKED, CALLS)))
    assert (text_of(parts), len(calls_of(parts))) == ("", 1)


@pytest.mark.parametrize("text", ["</", "</｜", "</p>", "｜DSML｜", "</｜DSML｜parameter>\n", "<", "null"])
def test_where_the_token_ends_texts_its_letters_are_a_text(text: str) -> None:
    given = [
        piece if isinstance(piece, int) else piece.replace("#", text)
        for piece in split(MARKED, CALLS.replace(">a<", ">#<"))
    ]
    assert accepts(compiled(call_grammar(MARKED, use(SET))), given)
    (call,) = calls_of(parsed(MARKED, use(SET), ids_of(given)))
    assert json.loads(call.arguments) == {"text": text}


@pytest.mark.parametrize(
    ("schema", "value", "as_text", "is_valid"),
    [
        ({"type": ["string", "integer"]}, "7", True, True),
        ({"type": ["string", "integer"]}, 7, False, True),
        ({"type": ["string", "integer"], "maxLength": 1}, "77", True, False),
        ({}, "x", True, True),
        ({}, {"a": 1}, False, True),
        ({"type": "integer"}, "7", True, False),
        ({"enum": ["x", 1]}, "y", True, False),
        ({"anyOf": [STRING, {"type": "null"}]}, None, False, True),
        ({"anyOf": [STRING, {"type": "null"}]}, "null", True, True),
    ],
)
def test_a_value_is_a_text_or_json_as_it_is_told(
    schema: dict[str, Any], value: Any, as_text: bool, is_valid: bool
) -> None:
    tool_use = use(Tool(name="set", parameters={"properties": {"v": schema}, "required": ["v"]}))
    made = tagged("deepseek_v4", [("set", {"v": value})], {"v"} if as_text else ())
    assert accepts(compiled(call_grammar(plain("deepseek_v4"), tool_use)), [made]) == is_valid
    (call,) = calls_of(parsed(plain("deepseek_v4"), tool_use, ids_of([made])))
    assert json.loads(call.arguments) == {"v": value}


@pytest.mark.parametrize("name", ["a<b", "</", '">', "a b", "｜"])
def test_a_name_may_have_what_is_a_part_of_a_mark(name: str) -> None:
    tool_use = use(Tool(name="set", parameters={"properties": {name: STRING}, "required": [name]}))
    made = split(MARKED, tagged("deepseek_v32", [("set", {name: "x"})], {name}))
    assert accepts(compiled(call_grammar(MARKED, tool_use)), made)
    (call,) = calls_of(parsed(MARKED, tool_use, ids_of(made)))
    assert json.loads(call.arguments) == {name: "x"}


def test_a_call_without_arguments_may_have_an_empty_line_as_templates_write_it() -> None:
    tool_use = use(Tool(name="now"))
    for line in ("", "\n"):
        made = tagged("deepseek_v32", [("now", {})]).replace("</｜DSML｜invoke", f"{line}</｜DSML｜invoke")
        for fmt in (MARKED, plain("deepseek_v32")):
            assert accepts(compiled(call_grammar(fmt, tool_use)), split(fmt, made))
            (call,) = calls_of(whole(fmt, tool_use, events(split(fmt, made))))
            assert (call.name, call.arguments) == ("now", "{}")


def test_calls_that_are_written_back_tell_what_their_values_are() -> None:
    call = {"function": {"name": "f", "arguments": {"a": "x", "b": [1]}}}
    assert written(MARKED, [call]) == tagged("deepseek_v32", [("f", {"a": "x", "b": [1]})], {"a"})
