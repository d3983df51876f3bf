"""Stop sequences beside calls: what the client sees as text ends at them, and no call does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.stop import StopMatcher
from inference.text.sequence import SequenceText
from inference.tools.formats import ToolFormat
from inference.tools.opening import Opening
from inference.tools.stops import WordStops
from inference.tools.types import ToolUse
from inference.types import Event, Token
from tests.examples import examples
from tests.unit.inference_tools.answers import (
    FORM_NAMES,
    FORMS,
    SILENT,
    TEXT_OF,
    Call,
    Piece,
    calls_of,
    events,
    pieces_of,
    plain,
    special,
    text_of,
    use,
    whole,
    written,
)

FIRST_TEXT = 100  # id of the first token that isn't special
CALLS = [Call("get_weather", '{"city": "Paris\\n"}'), Call("add", '{"a": [1, 2]}')]
TOLD = [call.told for call in CALLS]
COMMON = ["\n", "{", "}", '"', "name", "arguments", "parameters", "add", "Paris", ",", ": ", "["]
MARKUP = ["<tool_call>", "</tool_call>", "<|python_tag|>", "[TOOL_CALLS]", "[ARGS]"]
every_form = pytest.mark.parametrize("fmt", FORMS, ids=FORM_NAMES)


class Pieces:
    """Text of which every token is a piece."""

    def __init__(self, texts: Mapping[int, str]) -> None:
        self._texts = texts

    def push(self, token_id: int) -> str:
        return self._texts[token_id]

    def flush(self) -> str:
        return ""


def generated(
    fmt: ToolFormat, tool_use: ToolUse, pieces: Sequence[Piece], stops: Sequence[str], early: int = 0
) -> list[Event]:
    """Return the events of an answer up to its end; the `early` tokens may not stop."""
    texts = {at: piece for at, piece in enumerate(pieces, FIRST_TEXT) if isinstance(piece, str)}
    sequence = SequenceText(
        Pieces(texts), stops, TEXT_OF.__getitem__, WordStops(stops, Opening(fmt, tool_use))
    )
    made = []
    for at, piece in enumerate(pieces):
        token_id, is_special = (piece, True) if isinstance(piece, int) else (FIRST_TEXT + at, False)
        step = sequence.push(token_id, special=is_special, may_stop=at >= early)
        made.append(Event(at, Token(token_id, step.text, 0.0, is_special), (), step.delta))
        if step.stopped:
            break
    if made:
        made[-1] = replace(made[-1], delta=made[-1].delta + sequence.flush())
    assert sequence.text_before_stop == "".join(event.delta for event in made)
    return made


def answer(
    fmt: ToolFormat, pieces: Sequence[Piece], stops: Sequence[str], *, required: bool = False, early: int = 0
) -> tuple[str, list[Call]]:
    tool_use = use(required=required)
    parts = whole(fmt, tool_use, generated(fmt, tool_use, pieces, stops, early))
    return text_of(parts), calls_of(parts)


def before(text: str, stops: Sequence[str]) -> tuple[str, bool]:
    """Return a text up to the first stop sequence, and whether there is one."""
    matcher = StopMatcher(stops)
    shown = matcher.push(text) + matcher.flush()
    return shown, matcher.matched is not None


@every_form
@pytest.mark.parametrize("required", [False, True])
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_no_stop_sequence_ends_a_call(fmt: ToolFormat, required: bool, size: int) -> None:
    pieces = pieces_of(written(fmt, CALLS), [size])
    for stop in COMMON + MARKUP:
        assert answer(fmt, pieces, [stop], required=required) == ("", TOLD), stop


@every_form
@pytest.mark.parametrize("size", [1, 1000])
def test_what_is_said_before_calls_ends_at_a_stop_sequence(fmt: ToolFormat, size: int) -> None:
    if fmt.opening:
        pieces = pieces_of(written(fmt, CALLS, "Let me see.\n"), [size])
        assert answer(fmt, pieces, ["me"]) == ("Let ", [])
        assert answer(fmt, pieces, ["e."]) == ("Let me se", [])
        assert answer(fmt, pieces, ["Paris"]) == ("Let me see.", TOLD)


@every_form
@pytest.mark.parametrize("stop", ["\n", ".\n", ".\n<tool", ".\n[TOOL_CALLS]", ".\n<|python_tag|>", "\n\n"])
def test_one_that_ends_behind_the_words_matches_nothing(fmt: ToolFormat, stop: str) -> None:
    """White space between words and calls isn't shown either: templates write it before the sign."""
    if fmt.opening:
        pieces = pieces_of(written(fmt, CALLS, "Let me see.\n"), [2])
        assert answer(fmt, pieces, [stop]) == ("Let me see.", TOLD)


@pytest.mark.parametrize(
    ("fmt", "text", "stop", "shown"),
    [
        (plain("hermes"), "a <tool> b", "<", "a "),
        (plain("hermes"), "a <tool> b", "<tool", "a "),
        (plain("hermes"), "a <tool_cal", "_cal", "a <tool"),
        (plain("hermes"), "a \n b", "\n", "a "),
        (plain("hermes"), "a\n", "\n", "a"),
        (plain("generic"), '{"name": "Bob"}', "{", ""),
        (plain("generic"), '{"name": "get_weather2"}', '"get', '{"name": '),
        (plain("generic"), '{"na', "na", '{"'),
        (special("llama3"), 'So: {"name": "add", "parameters": {}}', "{", "So: "),
        (special("mistral"), "[TOOL_CALLS", "TOOL", "["),
    ],
)
@pytest.mark.parametrize("size", [1, 1000])
def test_what_only_resembles_a_call_is_text_with_stop_sequences(
    fmt: ToolFormat, text: str, stop: str, shown: str, size: int
) -> None:
    assert answer(fmt, pieces_of([text], [size]), [stop]) == (shown, [])


def test_a_special_token_that_is_a_stop_sequence_ends_text_and_is_none_within_calls() -> None:
    fmt, silent = special("hermes"), TEXT_OF[SILENT]
    assert answer(fmt, ["So ", SILENT, "on"], [silent]) == ("So ", [])
    assert answer(fmt, [*written(fmt, CALLS), SILENT], [silent]) == ("", TOLD)


def test_a_special_token_settles_that_text_before_it_was_no_call() -> None:
    made = generated(special("generic"), use(), ["{", SILENT, '"name"'], ["{"])
    assert [(event.token.id, event.delta) for event in made] == [(FIRST_TEXT, ""), (SILENT, "")]


def test_a_call_is_not_held_back_for_stop_sequences() -> None:
    pieces = pieces_of(["See. ", '<tool_call>\n{"name": "add", "arguments": {"a": "ST'], [3])
    made = generated(special("hermes"), use(), pieces, ["STOP", "See. <tool_call>"])
    deltas = [event.delta for event in made]
    sign = next(at for at, delta in enumerate(deltas) if "<tool_call>" in delta)
    assert deltas[sign] == "See. <tool_call>\n{"[: len(deltas[sign])]
    assert deltas[sign + 1 :] == pieces[sign + 1 :]


@pytest.mark.parametrize(("early", "shown"), [(0, "a"), (2, "a\n"), (3, "a\n\nb"), (9, "a\n\nb\nc")])
def test_it_counts_when_a_stop_sequence_came_and_not_when_it_was_found_to_be_text(
    early: int, shown: str
) -> None:
    assert answer(plain("hermes"), list("a\n\nb\nc"), ["\n"], early=early) == (shown, [])


words = st.text(st.sampled_from('ab {}<>\n"[]é.'), max_size=8) | st.sampled_from(
    ["<tool_call", "Sure. \n", ' {"name": "x"', "[TOOL_CALLS", "</tool_call>", '{"name": "add2"']
)
some_stops = st.lists(
    st.sampled_from([*COMMON, *MARKUP, "a", ".", "e. \n", " {", "<", "_c"]) | words.filter(bool),
    min_size=1,
    max_size=4,
)


@settings(max_examples=examples(400), deadline=None)
@given(
    st.sampled_from(FORMS),
    words,
    st.integers(0, 2),
    some_stops,
    st.lists(st.integers(1, 7), min_size=1, max_size=5),
)
def test_an_answer_is_what_it_is_without_stop_sequences_cut_where_its_text_has_one(
    fmt: ToolFormat, text: str, count: int, stops: list[str], cuts: list[int]
) -> None:
    pieces = written(fmt, CALLS[:count], text)
    parts = whole(fmt, use(), events(pieces))
    shown, stopped = before(text_of(parts), stops)
    calls = [] if stopped else calls_of(parts)
    assert answer(fmt, pieces_of(pieces, cuts), stops) == (shown, calls)
