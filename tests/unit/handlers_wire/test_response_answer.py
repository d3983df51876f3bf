"""Responses made of the engine's events: whole, streamed, and what a client puts together of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from codegen.property_responses import response_problems
from handlers.wire.calls import CallIds
from handlers.wire.limits import Limits
from handlers.wire.openai import Stamp, logprobs
from handlers.wire.parts import Logprobs
from handlers.wire.response_answer import ResponseAnswer
from handlers.wire.response_output import Output
from handlers.wire.responses import to_asked
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, TextPart
from inference.types import Event, FinishReason, Request, Token
from tests.unit.handlers_wire.conftest import Sample
from tests.unit.handlers_wire.scripted import ScriptedParser

Fits = Callable[[str, Any], bool]
LIMITS = Limits(max_best_of=2, max_stop_sequences=4, max_top_n_tokens=5)
STAMP = Stamp(id="resp_1", created=1763600000, model="org/m", fingerprint="1-native")
CALL: list[Part] = [CallStart(0, "f"), CallArguments(0, "{}"), CallEnd(0)]


def tell(events: Sequence[Event]) -> Logprobs:
    return logprobs(events, 1)["content"]


def events_of(number: int, reason: FinishReason = FinishReason.EOS) -> tuple[Event, ...]:
    return Sample.output([Token(at, f"t{at}", -1.0, False) for at in range(number)], top=True, reason=reason)


def answer(
    pushes: Sequence[Sequence[Part]] | None = None, rest: Sequence[Part] = (), *, told: bool = False
) -> ResponseAnswer:
    """Return an answer; with `pushes`, what its parser finds in each event, and `rest` at the end."""
    numbers = count()
    output = Output(
        "1",
        numbers,
        parser=None if pushes is None else ScriptedParser(pushes, rest),
        call_ids=CallIds(()).of(0),
        tell=tell if told else None,
    )
    return ResponseAnswer(to_asked({"input": "Hi"}, LIMITS).blank(STAMP), output, numbers, lambda: 1763600001)


def streamed(given_answer: ResponseAnswer, events: Sequence[Event]) -> list[Any]:
    return [told for event in events for told in given_answer.events(0, event)]


def kinds(events: Sequence[Any]) -> list[str]:
    return [event["type"].removeprefix("response.") for event in events]


def test_a_text_is_one_message(fits: Fits) -> None:
    body = answer().body(events_of(2))
    assert body["output"] == [
        {
            "type": "message",
            "id": "msg_10",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "t0t1", "annotations": [], "logprobs": []}],
        }
    ]
    assert (body["status"], body["completed_at"]) == ("completed", 1763600001)
    assert body["usage"] == {
        "input_tokens": 2,
        "input_tokens_details": {"cached_tokens": 0, "cache_write_tokens": 0},
        "output_tokens": 2,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": 4,
    }
    assert fits("ModelResponse", body)


def test_a_text_that_is_cut_is_incomplete() -> None:
    body = answer().body(events_of(2, FinishReason.LENGTH))
    assert (body["status"], body["completed_at"]) == ("incomplete", None)
    assert body["incomplete_details"] == {"reason": "max_output_tokens"}
    assert body["output"][0]["status"] == "incomplete"


def test_the_events_of_a_text_come_in_openais_order() -> None:
    events = streamed(answer(), events_of(2))
    assert kinds(events) == [
        *("created", "in_progress", "output_item.added", "content_part.added"),
        *("output_text.delta", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done", "completed"),
    ]


def test_the_events_of_text_and_calls_come_in_openais_order() -> None:
    pushes: list[list[Part]] = [
        [TextPart("Hm.")],
        CALL[:2],
        [CALL[2], CallStart(1, "g"), CallArguments(1, "{"), CallArguments(1, "}")],
    ]
    events = streamed(answer(pushes, [CallEnd(1)]), events_of(3))
    assert kinds(events[2:]) == [
        *("output_item.added", "content_part.added", "output_text.delta"),
        *("output_text.done", "content_part.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done"),
        *("output_item.added", "function_call_arguments.delta", "function_call_arguments.delta"),
        *("function_call_arguments.done", "output_item.done", "completed"),
    ]
    told = events[-1]["response"]["output"]
    assert [(item["type"], item.get("call_id"), item.get("arguments")) for item in told] == [
        ("message", None, None),
        ("function_call", "0", "{}"),
        ("function_call", "1", "{}"),
    ]
    assert [item["id"] for item in told] == ["msg_10", "fc_11", "fc_12"]


def test_a_call_that_is_cut_is_told_as_far_as_it_came() -> None:
    body = answer([CALL[:2]]).body(events_of(1, FinishReason.STOP))
    assert (body["status"], body["output"][0]["status"]) == ("completed", "incomplete")
    body = answer([CALL[:2]]).body(events_of(1, FinishReason.LENGTH))
    assert (body["status"], body["output"][0]["status"]) == ("incomplete", "incomplete")
    body = answer([CALL]).body(events_of(1, FinishReason.LENGTH))
    assert (body["status"], body["output"][0]["status"]) == ("incomplete", "completed")


@pytest.mark.parametrize("pushes", [None, [[]]])
def test_an_answer_that_says_nothing_has_an_empty_message(pushes: Any) -> None:
    events = Sample.output([Token(0, "</s>", -1.0, True)], reason=FinishReason.EOS)
    told = streamed(answer(pushes), events)
    assert list(response_problems(told, failed=False)) == []
    assert told[-1]["response"]["output"][0]["content"][0]["text"] == ""


def test_log_probabilities_of_the_text_are_told_and_not_those_of_calls() -> None:
    pushes: list[list[Part]] = [[], [TextPart("t0t1")], [*CALL]]
    body = answer(pushes, told=True).body(events_of(3))
    (message, _) = body["output"]
    assert message["type"] == "message"
    (part,) = message["content"]
    assert [entry["token"] for entry in part["logprobs"]] == ["t0", "t1"]


def test_tokens_without_a_text_are_told_at_the_end() -> None:
    tokens = [Token(0, "t0", -1.0, False), Token(1, "</s>", -1.0, True)]
    events = streamed(answer(told=True), Sample.output(tokens, reason=FinishReason.EOS))
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert [(event["delta"], len(event["logprobs"])) for event in deltas] == [("t0", 1), ("", 1)]
    assert list(response_problems(events, failed=False)) == []


def test_a_failure_tells_what_there_was(fits: Fits) -> None:
    failing = answer([[TextPart("Hm.")], CALL[:2]])
    events = streamed(failing, events_of(3)[:2])
    (last,) = failing.failed({"code": "server_error", "message": "no", "type": "generation"})
    assert last["type"] == "response.failed"
    assert last["sequence_number"] == len(events)
    assert last["response"]["status"] == "failed"
    assert [item["status"] for item in last["response"]["output"]] == ["completed", "incomplete"]
    assert last["response"]["usage"] is None
    assert fits("ResponseFailedEvent", last)
    assert list(response_problems(events, failed=True)) == []


def test_a_failure_before_all_else_comes_behind_the_beginning() -> None:
    told = answer().failed({"code": "server_error", "message": "no", "type": "generation"})
    kinds = ["response.created", "response.in_progress", "response.failed"]
    assert [event["type"] for event in told] == kinds
    assert [event["sequence_number"] for event in told] == [0, 1, 2]


def test_the_last_events_weigh_what_they_tell_again() -> None:
    telling, request = answer(told=True), Request(id="a", prompt="x", top_n_tokens=4)
    first, last = events_of(2)
    assert telling.values([first], request) == 5
    assert telling.values([last], request) == 5 + 4 * 10


TEXTS = some.lists(some.text(min_size=1, max_size=3).map(TextPart), max_size=3)
ARGUMENTS = some.lists(some.text(min_size=1, max_size=3), min_size=1, max_size=3)


@given(TEXTS, some.lists(ARGUMENTS, max_size=3), some.booleans(), some.data())
def test_a_stream_put_together_is_the_whole_answer(
    texts: list[Part], calls: list[list[str]], told: bool, data: some.DataObject
) -> None:
    parts = list(texts)
    for at, pieces in enumerate(calls):
        parts += [CallStart(at, f"f{at}"), *(CallArguments(at, piece) for piece in pieces), CallEnd(at)]
    number = data.draw(some.integers(1, 4))
    places = sorted(data.draw(some.lists(some.integers(0, number), min_size=len(parts), max_size=len(parts))))
    pushes: list[list[Part]] = [
        [part for part, place in zip(parts, places, strict=True) if place == at] for at in range(number)
    ]
    rest = [part for part, place in zip(parts, places, strict=True) if place == number]
    reason = data.draw(some.sampled_from(FinishReason))
    events = events_of(number, reason)
    whole = answer(pushes, rest, told=told).body(events)
    stream = streamed(answer(pushes, rest, told=told), events)
    assert stream[-1]["response"] == whole
    assert list(response_problems(stream, failed=False)) == []
