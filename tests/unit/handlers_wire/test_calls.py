from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as some

from handlers.wire.calls import CallDeltas, CallIds, call_delta, custom_delta, message, text_delta
from handlers.wire.types import ChatCompletionDelta
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, TextPart
from inference.types import Event, Token
from tests.unit.handlers_wire.conftest import Sample
from tests.unit.handlers_wire.scripted import ScriptedParser

Json = dict[str, Any]


def event(index: int, *, last: bool) -> Event:
    finish = Sample.finish("", generated=index) if last else None
    return Event(index, Token(1, "x", -1.0, False), (), "x", finish)


def pushed(
    pushes: Sequence[Sequence[Part]], rest: Sequence[Part] = (), custom: Collection[str] = ()
) -> tuple[list[list[ChatCompletionDelta]], CallDeltas]:
    """Return the deltas of each event, the last of which ends the text."""
    deltas = CallDeltas(ScriptedParser(pushes, rest), CallIds(()).of(0), custom=custom)
    made = [deltas.push(event(at, last=at == len(pushes))) for at in range(1, len(pushes) + 1)]
    return made, deltas


def test_the_first_delta_of_a_call_has_name_id_and_brace_and_the_others_the_rest() -> None:
    made, deltas = pushed(
        [
            [CallStart(0, "weather")],
            [CallArguments(0, "{")],
            [CallArguments(0, '"a": 1')],
            [CallArguments(0, "}"), CallEnd(0)],
            [],
        ]
    )
    assert made == [
        [],
        [call_delta(0, "{", id="0", name="weather")],
        [call_delta(0, '"a": 1')],
        [call_delta(0, "}")],
        [call_delta(0, "")],
    ]
    assert deltas.complete
    delta = made[2][0]
    assert "tool_calls" in delta
    (function,) = delta["tool_calls"]
    assert function == {
        "index": 0,
        "id": None,
        "type": "function",
        "function": {"name": None, "arguments": '"a": 1'},
    }


def test_a_token_may_hold_more_than_the_brace_and_more_than_one_call() -> None:
    made, deltas = pushed(
        [
            [
                TextPart("So: "),
                CallStart(0, "f"),
                CallArguments(0, "{}"),
                CallEnd(0),
                CallStart(1, "g"),
                CallArguments(1, '{"a"'),
            ]
        ],
        [CallArguments(1, ":1}"), CallEnd(1)],
    )
    assert made == [
        [
            text_delta("So: "),
            call_delta(0, "{", id="0", name="f"),
            call_delta(0, "}"),
            call_delta(1, "{", id="1", name="g"),
            call_delta(1, '"a"'),
            call_delta(1, ":1}"),
        ]
    ]
    assert deltas.complete


def test_a_call_that_is_cut_is_given_as_far_as_it_came() -> None:
    cut, deltas = pushed([[CallStart(0, "f")], [CallArguments(0, "{")]])
    assert cut == [[], [call_delta(0, "{", id="0", name="f")]]
    assert not deltas.complete
    named, deltas = pushed([[CallStart(0, "f")]])
    assert named == [[call_delta(0, "", id="0", name="f")]]
    assert not deltas.complete


def test_text_without_a_call_ends_with_a_delta_of_text() -> None:
    made, deltas = pushed([[TextPart("Hi")], []])
    assert made == [[text_delta("Hi")], [text_delta("")]]
    assert not deltas.complete


def test_deltas_add_up_to_the_message() -> None:
    deltas: list[ChatCompletionDelta] = [
        text_delta("So"),
        text_delta(": "),
        call_delta(0, "{", id="4", name="f"),
        call_delta(0, "}"),
        call_delta(1, "{", id="5", name="g"),
        call_delta(1, '"a":1}'),
        call_delta(1, ""),
    ]
    calls = [
        {"id": "4", "type": "function", "function": {"description": None, "name": "f", "arguments": "{}"}},
        {
            "id": "5",
            "type": "function",
            "function": {"description": None, "name": "g", "arguments": '{"a":1}'},
        },
    ]
    assert message(deltas) == {
        "role": "assistant",
        "content": "So: ",
        "refusal": None,
        "tool_calls": calls,
    }
    assert message(deltas[2:])["content"] is None
    assert message([text_delta("")]) == {"role": "assistant", "content": "", "refusal": None}


def history(*ids: str) -> list[Json]:
    return [{"role": "assistant", "content": None, "tool_calls": [{"id": id} for id in ids]}]


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ([], ["0", "1", "2"]),
        ([{"role": "user", "content": "Hi"}], ["0", "1", "2"]),
        (history("0"), ["1", "2", "3"]),
        (history("7", "2"), ["8", "9", "10"]),
        ([*history("0"), {"role": "tool", "tool_call_id": "3", "content": "x"}], ["4", "5", "6"]),
    ],
)
def test_ids_go_on_from_the_largest_of_the_conversation(messages: list[Json], expected: list[str]) -> None:
    assert expected == list(islice(CallIds(messages).of(0), 3))


@pytest.mark.parametrize("id", ["call_1", "", "-1", "1.5", "²", "9" * 19])
def test_ids_are_uuids_if_one_of_the_conversation_is_no_number(id: str) -> None:
    ids = list(islice(CallIds([*history("3"), *history(id)]).of(0), 3))
    assert {UUID(id).version for id in ids} == {4}
    assert len(set(ids)) == 3


@given(some.lists(some.integers(0, 10**17), max_size=5), some.integers(1, 5))
def test_no_id_comes_twice_in_answers_side_by_side(taken: list[int], choices: int) -> None:
    given_ids = [str(id) for id in taken]
    ids = CallIds(history(*given_ids), choices)
    made = [id for choice in range(choices) for id in islice(ids.of(choice), 4)]
    assert len({*made, *given_ids}) == 4 * choices + len(set(given_ids))


@pytest.mark.parametrize("messages", [[], history("4"), history("call_x0")])
def test_ids_that_last_are_made_of_the_answers_own(messages: list[Json]) -> None:
    made = [list(islice(CallIds(messages, 2, answer="3f").of(choice), 2)) for choice in range(2)]
    assert made == [["call_3f0", "call_3f2"], ["call_3f1", "call_3f3"]]


def test_a_custom_tools_call_has_its_input_in_place_of_arguments() -> None:
    made, deltas = pushed(
        [
            [CallStart(0, "note")],
            [CallArguments(0, '{"inp')],
            [CallArguments(0, 'ut":"a\\')],
            [CallArguments(0, 'nb"}'), CallEnd(0)],
            [CallStart(1, "weather"), CallArguments(1, "{}"), CallEnd(1)],
            [CallStart(2, "note"), CallArguments(2, '{"input":"c')],
            [],
        ],
        custom={"note"},
    )
    assert made == [
        [custom_delta(0, id="0", name="note")],
        [],
        [custom_delta(0, "a")],
        [custom_delta(0, "\nb")],
        [call_delta(1, "{", id="1", name="weather"), call_delta(1, "}")],
        [custom_delta(2, id="2", name="note"), custom_delta(2, "c")],
        [custom_delta(2)],
    ]
    assert not deltas.complete
    told = message(delta for each in made for delta in each)
    assert "tool_calls" in told
    assert told["tool_calls"] == [
        {"id": "0", "type": "custom", "custom": {"name": "note", "input": "a\nb"}},
        {
            "id": "1",
            "type": "function",
            "function": {"description": None, "name": "weather", "arguments": "{}"},
        },
        {"id": "2", "type": "custom", "custom": {"name": "note", "input": "c"}},
    ]
