"""Arguments as literals: what grammars allow is what schemas allow, and is read as JSON of the same."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest

from inference.tools.formats import ToolFormat, with_tokens
from inference.tools.grammar import call_grammar
from inference.tools.history import written
from inference.tools.known_formats import FORMATS
from inference.tools.types import Tool, ToolUse
from inference.types import CompiledGrammar, Grammar, GrammarKind
from tests.unit.inference_tools.answers import (
    Piece,
    calls_of,
    events,
    pieces_of,
    plain,
    split,
    text_of,
    whole,
)
from tests.unit.inference_tools.grammars import accepts, allowed, compiled, ids_of, parsed, use
from tests.unit.inference_tools.native_literals import (
    FRAMES,
    LITERAL_FORMATS,
    QUOTES,
    literal_calls,
)

FORMS = {
    **{name: plain(name) for name in LITERAL_FORMATS},
    "pythonic with a token": with_tokens(FORMATS["pythonic"], {"<|python_start|>": 0, "<|silent|>": 1}),
    "lfm2 with tokens": with_tokens(FORMATS["lfm2"], {"<|tool_call_start|>": 0, "<|tool_call_end|>": 1}),
    "gemma with tokens": with_tokens(FORMATS["gemma"], {"<|tool_call>": 0, '<|"|>': 1}),
}
every_form = pytest.mark.parametrize("form", FORMS)
STRING, NULL = {"type": "string"}, {"type": "null"}
PROPERTIES: dict[str, Any] = {
    "text": STRING,
    "colour": {"enum": ["red", "it's", "", 1, None, True]},
    "code": {"type": "string", "pattern": "^[a-c]{1,3}$"},
    "short": {"type": "string", "maxLength": 2},
    "note": {"anyOf": [{"type": "string", "maxLength": 3}, NULL]},
    "count": {"type": "integer", "minimum": 0, "maximum": 9},
    "flag": {"type": "boolean"},
    "mixed": {"type": ["string", "integer"], "maxLength": 2},
    "tags": {"type": "array", "items": STRING, "minItems": 1, "maxItems": 3},
    "deep": {"$ref": "#/$defs/deep"},
    "free": {},
}
PARAMETERS = {
    "type": "object",
    "properties": PROPERTIES,
    "required": ["text", "count"],
    "$defs": {
        "deep": {
            "type": "object",
            "properties": {"a": STRING, "next": {"$ref": "#/$defs/deep"}, "z": {"type": "number"}},
            "required": ["z"],
        }
    },
}
SET, NOW = Tool(name="set", parameters=PARAMETERS), Tool(name="now")
FULL: dict[str, Any] = {
    "text": "a\n\"b\" 'c' )] }, f(x=1) \\ \t</function_calls>",
    "colour": "it's",
    "code": "abc",
    "short": "ä",
    "note": None,
    "count": 7,
    "flag": True,
    "mixed": 7,
    "tags": ["]", "", "😀"],
    "deep": {"a": ": ,", "next": {"z": 1}, "z": -2.5e3},
    "free": [{"k": None}, [], "x", False, {}],
}


def answer(fmt: ToolFormat, arguments: dict[str, Any], text: str = "") -> list[Piece]:
    made = literal_calls(fmt.name, [("set", arguments), ("now", {})])
    return [text, *split(fmt, made)]


@cache
def grammar_of(form: str, required: bool) -> CompiledGrammar:
    return compiled(call_grammar(FORMS[form], use(SET, NOW, required=required)))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize(
    ("changes", "is_valid"),
    [
        ({}, True),
        ({"note": "null"}, False),
        ({"note": "ab"}, True),
        ({"note": "abcd"}, False),
        ({"text": ""}, True),
        ({"text": None}, False),
        ({"text": 1}, False),
        ({"colour": "blue"}, False),
        ({"colour": 1}, True),
        ({"colour": True}, True),
        ({"colour": False}, False),
        ({"code": "abcd"}, False),
        ({"code": ""}, False),
        ({"short": "abc"}, False),
        ({"count": 10}, False),
        ({"count": None}, False),
        ({"count": 1.5}, False),
        ({"flag": "True"}, False),
        ({"mixed": "7"}, True),
        ({"tags": []}, False),
        ({"tags": ["a", "b", "c", "d"]}, False),
        ({"tags": ["a", 1]}, False),
        ({"deep": {"a": "x"}}, False),
        ({"deep": {"z": 1, "b": 1}}, False),
        ({"deep": {"next": {"next": {"a": "", "z": 0}, "z": 0}, "z": 0}}, True),
        ({"free": "x"}, True),
        ({"more": 1}, False),
    ],
)
def test_a_grammar_allows_what_the_schema_allows(form: str, changes: dict[str, Any], is_valid: bool) -> None:
    arguments = FULL | changes
    pieces = answer(FORMS[form], arguments)
    assert accepts(grammar_of(form, False), pieces) == is_valid
    assert accepts(grammar_of(form, True), pieces) == is_valid
    if is_valid:
        parts = calls_of(parsed(FORMS[form], use(SET, NOW), ids_of(pieces)))
        assert [(call.name, json.loads(call.arguments)) for call in parts] == [
            ("set", arguments),
            ("now", {}),
        ]


@every_form
def test_what_is_optional_is_left_out_and_what_is_required_is_not(form: str) -> None:
    fmt, grammar = FORMS[form], grammar_of(form, False)
    words = "" if fmt.bare else "Hm. "
    assert accepts(grammar, answer(fmt, {"text": "a", "count": 1}, words))
    assert accepts(grammar, answer(fmt, {"text": "a", "code": "b", "count": 1, "deep": {"z": 1}}))
    assert not accepts(grammar, answer(fmt, {"text": "a"}))
    assert not accepts(grammar, answer(fmt, {"count": 1, "text": "a"}))  # in the order of the schema, as JSON


OPTIONAL = Tool(name="set", parameters={"properties": {"a": STRING, "b": NULL, "c": STRING}})


@every_form
def test_any_choice_of_optional_arguments_may_come(form: str) -> None:
    fmt = FORMS[form]
    grammar = compiled(call_grammar(fmt, use(OPTIONAL, NOW)))
    for choice in range(8):
        given = {
            name: value
            for at, (name, value) in enumerate({"a": "x", "b": None, "c": "y"}.items())
            if choice >> at & 1
        }
        assert accepts(grammar, answer(fmt, given)), given


@every_form
def test_required_and_single_calls(form: str) -> None:
    fmt = FORMS[form]
    pieces = split(fmt, literal_calls(fmt.name, [("now", {})]))
    required = compiled(call_grammar(fmt, use(SET, NOW, required=True))).start()
    assert not allowed(required) >= set(ids_of(["Hi"]))
    matcher = compiled(call_grammar(fmt, use(SET, NOW, required=True, parallel=False))).start()
    assert all(matcher.accept(token_id) for token_id in ids_of(pieces))
    assert matcher.finished
    parts = parsed(fmt, use(SET, NOW, required=True), ids_of(pieces))
    assert [(call.name, call.arguments) for call in calls_of(parts)] == [("now", "{}")]


@every_form
def test_a_call_that_was_written_back_is_one_that_may_be_made(form: str) -> None:
    fmt = FORMS[form]
    calls = [{"function": {"name": "set", "arguments": FULL}}, {"function": {"name": "now", "arguments": {}}}]
    pieces = split(fmt, written(fmt, calls))
    assert accepts(grammar_of(form, False), pieces)
    (call, _) = calls_of(parsed(fmt, use(SET, NOW), ids_of(pieces)))
    assert json.loads(call.arguments) == FULL


@pytest.mark.parametrize("name", FRAMES)
@pytest.mark.parametrize("text", [json.dumps, repr, lambda said: f"'{said}'"], ids=["json", "repr", "as is"])
def test_texts_of_python_stand_in_either_quotes(name: str, text: Any) -> None:
    said = {"text": "a\nb: ,[é] )", "count": 1, "tags": ["x y", "2"], "deep": {"a": "-", "z": 0}}
    made = literal_calls(name, [("set", said)], text)
    assert accepts(compiled(call_grammar(plain(name), use(SET))), [made])
    (call,) = calls_of(parsed(plain(name), use(SET), ids_of([made])))
    assert json.loads(call.arguments) == said


@pytest.mark.parametrize("name", sorted(QUOTES))
def test_a_text_that_holds_the_marks_around_texts_is_one_of_json(name: str) -> None:
    mark = QUOTES[name][1]
    tool = Tool(name="f", parameters={"properties": {"a": {"enum": [f"a{mark}b", "c"]}}})
    for said in (f"a{mark}b", "c"):
        made = written(plain(name), [{"function": {"name": "f", "arguments": {"a": said}}}])
        assert accepts(compiled(call_grammar(plain(name), use(tool))), [made])
        (call,) = calls_of(parsed(plain(name), use(tool), ids_of([made])))
        assert json.loads(call.arguments) == {"a": said}


def test_where_the_mark_around_texts_is_a_token_its_letters_are_a_text() -> None:
    fmt, text = FORMS["gemma with tokens"], 'a<|"|>,b:1}'
    given = [
        piece if isinstance(piece, int) else piece.replace("#", text)
        for piece in answer(fmt, {"text": "#", "count": 1})
    ]
    assert accepts(grammar_of("gemma with tokens", False), given)
    (call, _) = calls_of(parsed(fmt, use(SET, NOW), ids_of(given)))
    assert json.loads(call.arguments) == {"text": text, "count": 1}


@pytest.mark.parametrize("form", ["pythonic", "pythonic with a token"])
@pytest.mark.parametrize(
    ("text", "calls"),
    [
        ("[1] says so, [now() or not]", []),
        ("[now is no call]", []),
        ("[]", []),
        ("I call [now()]", []),
        (" \n[now()]", ["now"]),
        ("Hm.</think>\n[now(), set(text='', count=1)]", ["now", "set"]),
    ],
)
def test_a_list_is_calls_where_the_answer_begins_or_a_thought_has_ended(
    form: str, text: str, calls: list[str]
) -> None:
    assert accepts(grammar_of(form, False), [text])
    for size in range(1, len(text)):
        parts = whole(FORMS[form], use(SET, NOW), events(pieces_of([text], [size])))
        assert [call.name for call in calls_of(parts)] == calls
        assert text_of(parts) == ((text.partition("\n[")[0] if "</think>" in text else "") if calls else text)


@pytest.mark.parametrize("form", ["pythonic", "lfm2", "gemma"])
def test_beside_a_form_an_answer_is_calls_or_follows_it(form: str) -> None:
    schema = Grammar(kind=GrammarKind.JSON_SCHEMA, source='{"type": "array"}', member="response_format")
    formed = ToolUse(tools=(SET, NOW), required=False, parallel=True, formed=True)
    grammar = compiled(call_grammar(plain(form), formed, form=schema))
    made = literal_calls(form, [("now", {}), ("set", {"text": "", "count": 1})])
    for answer_text, names in ((made, ["now", "set"]), ('["now()", [1]]', []), ("[]", [])):
        assert accepts(grammar, [answer_text])
        for size in range(1, 12):
            parts = whole(plain(form), formed, events(pieces_of([answer_text], [size])))
            assert [call.name for call in calls_of(parts)] == names
            assert text_of(parts) == ("" if names else answer_text)
    assert not accepts(grammar, [f"Hm. {made}"])
    assert not accepts(grammar, ["now"])


def test_a_token_before_a_list_says_that_it_is_calls() -> None:
    fmt = FORMS["pythonic with a token"]
    pieces: list[Piece] = ["I look. ", 0, "[now()]"]
    assert accepts(grammar_of("pythonic with a token", False), pieces)
    assert accepts(grammar_of("pythonic with a token", True), pieces[1:])
    parts = parsed(fmt, use(SET, NOW), ids_of(pieces))
    assert text_of(parts) == "I look."
    assert [call.name for call in calls_of(parts)] == ["now"]


def test_many_tools_fit() -> None:
    properties = {
        f"p{at}": PROPERTIES[name]
        for at, name in enumerate(["text", "code", "count", "note", "deep", "tags"])
    }
    tools = tuple(
        Tool(name=f"tool_{at}", parameters=PARAMETERS | {"properties": properties, "required": ["p0"]})
        for at in range(128)
    )
    for form in ("lfm2", "gemma", "pythonic"):
        grammar = compiled(call_grammar(plain(form), ToolUse(tools=tools, required=False, parallel=True)))
        assert accepts(grammar, [literal_calls(form, [("tool_77", {"p0": "x", "p2": 1})])])
