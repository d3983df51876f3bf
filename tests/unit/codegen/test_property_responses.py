"""What is wrong with a stream of Responses, or with an echo, is told: each rule with what breaks it."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from codegen.document import EVENTS, Document
from codegen.examples import read_transcript
from codegen.property_contract import promises
from codegen.property_responses import echo_problems, response_problems
from codegen.property_streams import stream_problems

DOCUMENT = Document.load()
PROMISE = promises(DOCUMENT)["create_response"]
TRANSCRIPTS = DOCUMENT.data["paths"]["/v1/responses"]["post"]["responses"]["200"]["content"][EVENTS][
    "x-sse-transcript"
]
RIGHT = list(read_transcript(TRANSCRIPTS["two calls streamed"]).events)
Change = Callable[[list[Any]], object]


def named(events: list[Any]) -> str:
    return "".join(f"event: {event['type']}\ndata: {json.dumps(event)}\n\n" for event in events)


def at(kind: str, events: list[Any]) -> Any:
    return next(event for event in events if event["type"] == f"response.{kind}")


@pytest.mark.parametrize("name", TRANSCRIPTS)
def test_the_documents_streams_are_right(name: str) -> None:
    assert list(stream_problems(PROMISE, TRANSCRIPTS[name])) == []


def test_a_stream_is_named_by_its_events() -> None:
    assert list(stream_problems(PROMISE, named(RIGHT))) == []
    without = "".join(f"data: {json.dumps(event)}\n\n" for event in RIGHT)
    assert list(stream_problems(PROMISE, without)) != []
    wrong = named(RIGHT).replace("event: response.completed", "event: response.done")
    assert list(stream_problems(PROMISE, wrong)) != []
    assert list(stream_problems(PROMISE, named(RIGHT) + "data: [DONE]\n\n")) != []


WRONG: dict[str, Change] = {
    "a number left out": lambda events: events[3].update(sequence_number=9),
    "no beginning": lambda events: events.pop(0),
    "no end": lambda events: events.pop(),
    "two ends": lambda events: events.append({**events[-1], "sequence_number": len(events)}),
    "an end of another status": lambda events: events[-1]["response"].update(status="incomplete"),
    "an item less in the whole": lambda events: events[-1]["response"]["output"].pop(),
    "a piece of text lost": lambda events: at("output_text.delta", events).update(delta=""),
    "a piece of arguments lost": lambda events: at("function_call_arguments.delta", events).update(delta=""),
    "another item's id": lambda events: at("output_text.done", events).update(item_id="msg_0"),
    "an item that is not done": lambda events: events.remove(at("output_item.done", events)),
    "log-probabilities of the whole alone": lambda events: at("output_text.done", events)["logprobs"].append(
        {"token": "a", "logprob": 0.0, "bytes": [97], "top_logprobs": []}
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_stream_that_breaks_a_rule_is_told(name: str) -> None:
    events = copy.deepcopy(RIGHT)
    WRONG[name](events)
    assert list(response_problems(RIGHT, failed=False)) == []
    assert list(response_problems(events, failed=False)) != []


@pytest.mark.parametrize(
    "changes",
    [
        {"temperature": 0.5},
        {"metadata": {"a": "b"}},
        {"usage": None},
        {"incomplete_details": {"reason": "max_output_tokens"}},
        {"usage": {"input_tokens": 1, "output_tokens": 1, "total_tokens": 3}},
        {"usage": {"input_tokens": 1, "output_tokens": 99, "total_tokens": 100}},
    ],
)
def test_an_echo_that_is_another_is_told(changes: Any) -> None:
    asked = {"input": "Hi", "max_output_tokens": 50}
    right = {**RIGHT[-1]["response"], "max_output_tokens": 50, "usage": {**RIGHT[-1]["response"]["usage"]}}
    right["usage"] |= {"input_tokens": 1, "output_tokens": 2, "total_tokens": 3}
    assert list(echo_problems(asked, right)) == []
    assert list(echo_problems(asked, {**right, **changes})) != []


def test_log_probabilities_that_nobody_asked_for_are_told() -> None:
    answer = copy.deepcopy(RIGHT[-1]["response"])
    asked = {"input": "Hi", "include": ["message.output_text.logprobs"]}
    assert list(echo_problems({"input": "Hi"}, answer)) == []
    assert list(echo_problems(asked, answer)) != []
