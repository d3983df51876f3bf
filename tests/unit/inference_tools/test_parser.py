from __future__ import annotations

import json
import re
from itertools import cycle, islice
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.text.detokenizer import ByteStream
from inference.text.sequence import SequenceText
from inference.tools.formats import ToolFormat
from inference.tools.heads import head_pattern
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, TextPart
from inference.types import Event, Token
from tests.examples import examples
from tests.unit.inference_tools.answers import (
    FORM_NAMES,
    FORMS,
    SILENT,
    TEXT_OF,
    Call,
    Piece,
    as_json,
    calls_of,
    events,
    parse,
    pieces_of,
    special,
    text_of,
    use,
    whole,
    written,
)

CALL = Call("get_weather", '{"city": "Paris"}')
SUM = Call("add", '{"a": [1, {"b": "}"}], "c": "\\"{\\\\"}')
every_form = pytest.mark.parametrize("fmt", FORMS, ids=FORM_NAMES)

GOLDEN: list[tuple[str, ToolFormat, list[Piece], str, list[Call]]] = [
    (
        "Qwen 2.5, two calls",
        special("hermes"),
        [
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>\n'
            '<tool_call>\n{"name": "add", "arguments": {}}\n</tool_call>'
        ],
        "",
        [CALL, Call("add", "{}")],
    ),
    (
        "Qwen 3, thoughts first",
        special("hermes"),
        [
            "<think>\nThe user wants weather.\n</think>\n\n",
            '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>',
        ],
        "<think>\nThe user wants weather.\n</think>",
        [CALL],
    ),
    (
        "Llama 3.2",
        special("llama3"),
        ['{"name": "get_weather", "parameters": {"city": "Paris"}}'],
        "",
        [CALL],
    ),
    (
        "Llama 3.1 with its tag, and the type that it likes to name",
        special("llama3"),
        [1, '{"type": "function", "name": "get_weather", "parameters": {"city": "Paris"}}'],
        "",
        [CALL],
    ),
    (
        "Mistral 7B v0.3",
        special("mistral"),
        [2, ' [{"name": "get_weather", "arguments": {"city": "Paris"}}]'],
        "",
        [CALL],
    ),
    (
        "Mistral Nemo with an id",
        special("mistral"),
        [2, '[{"name": "add", "arguments": {}, "id": "a1b2c3d4e"}, {"name": "add", "arguments": {}}]'],
        "",
        [Call("add", "{}"), Call("add", "{}")],
    ),
    (
        "Mistral Small 3.2",
        special("mistral_args"),
        [2, "get_weather", 4, "a1b2c3d4e", 3, '{"city": "Paris"}'],
        "",
        [CALL],
    ),
    (
        "Ministral 3, words first",
        special("mistral_args"),
        ["I'll look. ", 2, "get_weather", 3, '{"city": "Paris"}', 2, "add", 3, "{}"],
        "I'll look.",
        [CALL, Call("add", "{}")],
    ),
    (
        "TGI's prompt, answered in several lines",
        special("generic"),
        ['\n{\n  "name": "get_weather",\n  "parameters": {"city": "Paris"}\n}'],
        "",
        [CALL],
    ),
]

TEXTS: list[tuple[ToolFormat, list[Piece]]] = [
    (special("hermes"), ["a <tool and <tool_cal are no calls <tool_"]),
    (special("hermes"), ['{"name": "get_weather", "arguments": {}}']),
    (special("hermes"), ["<tool_", SILENT, "call>\n"]),
    (special("hermes"), ["trailing space \n "]),
    (special("llama3"), ['Call {"name": "get_weather", "parameters": {}}']),
    (special("llama3"), ['{"name": "Bob", "age": 3}']),
    (special("llama3"), ['{"name": "get_weather2", "parameters": {}}']),
    (special("llama3"), ['{"name": 5}']),
    (special("llama3"), ['{"type": "object", "name": "get_weather"}']),
    (special("llama3"), ["\n\n{", SILENT, '"name": "get_weather"']),
    (special("generic"), ["{}"]),
    (special("generic"), ['[{"name": "get_weather", "parameters": {}}]']),
    (special("generic"), ['{"na me": "get_weather"}']),
    (special("generic"), ['{"name": "get_ weather"}']),
    (special("generic"), [" {  "]),
    (special("mistral"), ["[TOOL_CALLS] is what it's called"]),
    (special("mistral_args"), ["get_weather[ARGS]{}"]),
]


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    ("fmt", "pieces", "text", "calls"), [row[1:] for row in GOLDEN], ids=[row[0] for row in GOLDEN]
)
def test_transcripts_are_read_whole_however_they_are_cut(
    fmt: ToolFormat, pieces: list[Piece], text: str, calls: list[Call], size: int
) -> None:
    parts = whole(fmt, use(), events(pieces_of(pieces, [size])))
    assert (text_of(parts), calls_of(parts)) == (text, [call.told for call in calls])


@pytest.mark.parametrize("size", [1, 1000])
@pytest.mark.parametrize(("fmt", "pieces"), TEXTS)
def test_what_only_resembles_a_call_stays_text(fmt: ToolFormat, pieces: list[Piece], size: int) -> None:
    parts = whole(fmt, use(), events(pieces_of(pieces, [size])))
    assert parts == (TextPart("".join(piece for piece in pieces if isinstance(piece, str))),)


def test_every_part_comes_as_early_as_it_is_sure() -> None:
    pieces = [
        "Sure",
        ".\n",
        "<tool",
        "_call>",
        '\n{"name": "add", "argu',
        'ments": {"a"',
        ": 1}",
        "}\n</tool_call>",
    ]
    assert parse(special("hermes"), use(), events(pieces)) == [
        (TextPart("Sure"),),
        (TextPart("."),),
        (),
        (),
        (),
        (CallStart(0, "add"), CallArguments(0, '{"a"')),
        (CallArguments(0, ":1}"), CallEnd(0)),
        (),
        (),
    ]


def test_text_is_not_held_back_once_it_is_no_call() -> None:
    pieces = ["{", '"name": "', "Bob", '", ', '"age": 3}']
    assert parse(special("generic"), use(), events(pieces)) == [
        (),
        (),
        (TextPart('{"name": "Bob'),),
        (TextPart('", '),),
        (TextPart('"age": 3}'),),
        (),
    ]


def test_white_space_is_shown_with_the_words_that_follow_it() -> None:
    shown = parse(special("hermes"), use(), events(["a", " \n", " ", "b", "\n"]))
    assert shown == [(TextPart("a"),), (), (), (TextPart(" \n b"),), (), (TextPart("\n"),)]


@every_form
def test_where_a_call_is_required_no_word_is_shown(fmt: ToolFormat) -> None:
    pieces = written(fmt, [CALL, SUM])
    parts = whole(fmt, use(required=True), events(pieces_of(pieces, [2])))
    assert (text_of(parts), calls_of(parts)) == ("", [CALL.told, SUM.told])
    cut = whole(fmt, use(required=True), events(pieces_of([*pieces[:-1], str(pieces[-1])[:9]], [2])))
    assert text_of(cut) == ""


@every_form
def test_names_of_any_length_and_letters_are_read(fmt: ToolFormat) -> None:
    """Without an expression for each, which takes a second for some hundred thousand letters."""
    calls = [Call(name, "{}") for name in ("n" * 300_000, r"a.*\(b)|", "get_weather")]
    asked = use(*(call.name for call in calls), required=True)
    parts = whole(fmt, asked, events(pieces_of(written(fmt, calls), [50_000])))
    assert calls_of(parts) == [call.told for call in calls]
    assert len(head_pattern(fmt).pattern) < 300


@every_form
@pytest.mark.parametrize("text", ["", "Let me see.", "a {b} <tool [TOOL"])
def test_an_answer_cut_anywhere_gives_a_beginning_of_what_the_whole_gives(fmt: ToolFormat, text: str) -> None:
    text = "" if fmt.bare and not fmt.opening else text  # such calls are the whole answer
    letters = pieces_of(written(fmt, [CALL, SUM], text), [1])
    for length in range(len(letters) + 1):
        parts = whole(fmt, use(), events(letters[:length]))
        calls, last = calls_of(parts), started(parts)
        assert calls == [CALL.told, SUM.told][: len(calls)]
        assert [name for name, _ in last] == ["get_weather", "add"][: len(last)]
        assert all(
            full.arguments.startswith(piece) and piece
            for (_, piece), full in zip(last, [CALL.told, SUM.told], strict=False)
        )
        if last:
            assert text_of(parts) == text


def started(parts: tuple[Part, ...]) -> list[tuple[str, str]]:
    """Return the names of all calls with what came of their arguments."""
    names = {part.index: part.name for part in parts if isinstance(part, CallStart)}
    pieces = dict.fromkeys(names, "")
    for part in parts:
        if isinstance(part, CallArguments):
            pieces[part.index] += part.text
    return [(name, pieces[index]) for index, name in names.items()]


def test_text_held_back_for_a_stop_sequence_stays_before_the_token_behind_it() -> None:
    """The client releases `ab`, which may begin the stop sequence `abc`, after `[TOOL_CALLS]`."""
    letters = {at: bytes([at]) for at in range(128)}
    sequence = SequenceText(
        ByteStream(lambda at: letters[at], strip_space=False), ["Parab"], TEXT_OF.__getitem__
    )
    made: list[Event] = []
    for piece in ["x Para", 2, "add", 3, '{"a": "Para"}']:
        for token_id in [piece] if isinstance(piece, int) else list(str(piece).encode()):
            is_special = isinstance(piece, int)
            step = sequence.push(token_id, special=is_special)
            made.append(Event(len(made), Token(token_id, step.text, 0.0, is_special), (), step.delta))
    assert [event.delta for event in made[2:7]] == ["", "", "", "", ""], "the end of the words is held back"
    parts = whole(special("mistral_args"), use(), made)
    assert (text_of(parts), calls_of(parts)) == ("x Para", [Call("add", '{"a":"Para"}')])


names = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=6).filter(
    lambda name: not any(marker in name for marker in TEXT_OF.values())
)
values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-9, 99)
    | st.text(max_size=4)
    | st.sampled_from(['"}', "\\", "{[", "</tool_call>"]),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
SPELLINGS = {"123456": "1.50", "234567": "-0", "345678": "1E+2", "456789": "1" * 30}
numbers = st.sampled_from([123456, 234567, 345678, 456789])  # in place of what json would spell otherwise
objects = st.dictionaries(st.text(max_size=3), st.lists(values | numbers, max_size=3) | numbers, max_size=3)
words = st.text(st.sampled_from('ab {}<>\n"[]é'), max_size=8) | st.sampled_from(
    ["<tool_call", "Sure. ", '{"name": "x"', "[TOOL_CALLS", "</tool_call>", "\n\n"]
)


@st.composite
def conversations(draw: st.DrawFn) -> tuple[ToolFormat, list[str], str, list[Call]]:
    fmt = draw(st.sampled_from(FORMS))
    known = draw(st.lists(names, min_size=1, max_size=3, unique=True))
    calls = [
        Call(
            draw(st.sampled_from(known)),
            as_json(draw(st.dictionaries(st.text(max_size=3), values, max_size=2))),
        )
        for _ in range(draw(st.integers(0, 3)))
    ]
    thought = draw(st.sampled_from(["", "</think>", "</think>\n\n"]))
    needs_thought = fmt.bare and not fmt.opening and calls
    text = "" if needs_thought and not thought else draw(words) + thought
    return fmt, known, text, calls


@settings(max_examples=examples(300), deadline=None)
@given(conversations(), st.lists(st.integers(1, 7), min_size=1, max_size=5))
def test_any_conversation_is_read_the_same_in_one_piece_and_in_many(
    conversation: tuple[ToolFormat, list[str], str, list[Call]], cuts: list[int]
) -> None:
    fmt, known, text, calls = conversation
    pieces = written(fmt, calls, text)
    tool_use = use(*known)
    parts = whole(fmt, tool_use, events(pieces_of(pieces, [10_000])))
    assert whole(fmt, tool_use, events(pieces_of(pieces, cuts))) == parts
    begins_like_a_call = fmt.bare and text.lstrip(" \n").startswith("{")
    has_sign = any(marker.id is None and marker.text in text for marker in fmt.opening[:1])
    if not begins_like_a_call and not has_sign:
        assert calls_of(parts) == [call.told for call in calls]
        assert text_of(parts) == (text.rstrip() if calls else text)
        assert all(isinstance(json.loads(call.arguments), dict) for call in calls_of(parts))


@settings(max_examples=examples(200), deadline=None)
@given(objects, st.lists(st.text(" \t\n\r", max_size=3), min_size=1), st.lists(st.integers(1, 5), min_size=1))
def test_arguments_are_compact_whatever_white_space_they_were_written_with(
    value: dict[str, Any], gaps: list[str], cuts: list[int]
) -> None:
    """White space stands between any two tokens of JSON; numbers keep their spelling."""
    compact = json.dumps(value, separators=(",", ":"))
    tokens = re.findall(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^"{}\[\]:,]+', compact)
    white = islice(cycle(gaps), len(tokens))
    arguments = "".join(token + gap for token, gap in zip(tokens, white, strict=True))
    for spelling, number in SPELLINGS.items():
        compact, arguments = (text.replace(spelling, number) for text in (compact, arguments))
    pieces = written(special("hermes"), [Call("add", arguments)])
    parts = whole(special("hermes"), use(), events(pieces_of(pieces, cuts)))
    assert calls_of(parts) == [Call("add", compact)]


@settings(max_examples=examples(200), deadline=None)
@given(
    st.sampled_from(FORMS),
    st.booleans(),
    st.lists(st.text(max_size=5) | st.integers(0, 4) | words, max_size=12),
)
def test_whatever_comes_is_read_without_failing_and_calls_are_well_formed(
    fmt: ToolFormat, required: bool, pieces: list[Piece]
) -> None:
    parts = whole(fmt, use(required=required), events(pieces))
    calls_of(parts)
    assert not (required and text_of(parts))
