"""Messages made of the engine's events: whole, streamed, and why they end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import orjson
import pytest

from codegen.property_messages import answer_problems, message_problems, put_together
from handlers.wire.calls import CallIds
from handlers.wire.message_answer import MessageAnswer, stop_sequence
from handlers.wire.openai import Stamp
from handlers.wire.output_blocks import Blocks
from handlers.wire.parts import Parts
from handlers.wire.types import MessageEvent, ModelMessage, OutputBlock
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, TextPart
from inference.types import Event, FinishReason, Request, Token
from tests.unit.handlers_wire.conftest import Sample
from tests.unit.handlers_wire.scripted import ScriptedParser

Fits = Callable[[str, Any], bool]
STAMP = Stamp(id="msg_1", created=1763600000, model="org/m", fingerprint="1-native")
CALL: list[Part] = [CallStart(0, "f"), CallArguments(0, '{"a":'), CallArguments(0, "1}"), CallEnd(0)]
EOS, LENGTH = FinishReason.EOS, FinishReason.LENGTH


def events_of(number: int, **changes: Any) -> tuple[Event, ...]:
    return Sample.output([Token(at, f"t{at}", -1.0, False) for at in range(number)], **changes)


def answer(
    pushes: Sequence[Sequence[Part]] | None = None, rest: Sequence[Part] = (), *, most: int | None = 2
) -> MessageAnswer:
    """Return an answer; with `pushes`, what its parser finds in each event, and `rest` at the end."""
    parts: Parts[MessageEvent, OutputBlock] = Parts(
        Blocks(),
        parser=None if pushes is None else ScriptedParser(pushes, rest),
        call_ids=CallIds((), answer="1", prefix="toolu_").of(0),
    )
    request = Request(id="1", prompt="Hi", max_new_tokens=most, stop=("b", "bc", "x"))
    return MessageAnswer(STAMP, request, parts, 2)


def sent(body: ModelMessage) -> Any:
    """Return a body as a client has it."""
    return orjson.loads(orjson.dumps(body))


SCRIPTS: list[tuple[Any, Any, int | None]] = [
    (None, EOS, None),
    (None, LENGTH, 2),
    (None, LENGTH, 9),
    ([[TextPart("a")], CALL], EOS, None),
    ([[*CALL], [CallStart(1, "g"), CallArguments(1, "{}"), CallEnd(1)]], EOS, None),
    ([[], CALL[:2]], LENGTH, 2),
]
REASONS = (
    *("end_turn", "max_tokens", "model_context_window_exceeded"),
    *("tool_use", "tool_use", "max_tokens"),
)
INPUTS: list[list[Any]] = [[], [], [], [{"a": 1}], [{"a": 1}, {}], [{}]]


@pytest.mark.parametrize(("pushes", "reason", "most"), SCRIPTS)
def test_a_stream_put_together_is_the_whole(fits: Fits, pushes: Any, reason: Any, most: int | None) -> None:
    events = events_of(2, reason=reason)
    whole = sent(answer(pushes, most=most).body(events))
    stream = answer(pushes, most=most)
    told = [each for event in events for each in stream.events(0, event)]
    assert put_together(told) == whole
    assert list(message_problems(told, failed=False)) == []
    assert list(answer_problems({"max_tokens": most}, whole)) == []
    assert fits("ModelMessage", whole)
    assert all(fits("MessageEvent", each) for each in told)


@pytest.mark.parametrize(("script", "reason", "inputs"), list(zip(SCRIPTS, REASONS, INPUTS, strict=True)))
def test_why_it_ends_and_what_is_called(script: Any, reason: str, inputs: list[Any]) -> None:
    pushes, finish, most = script
    whole = sent(answer(pushes, most=most).body(events_of(2, reason=finish)))
    assert whole["stop_reason"] == reason
    assert [block["input"] for block in whole["content"] if block["type"] == "tool_use"] == inputs


@pytest.mark.parametrize(
    "value", ["9" * 25, "1e999", "9" * 5000, "[" * 300 + "]" * 300], ids=["wide", "beyond", "long", "deep"]
)
def test_arguments_are_sent_as_they_were_written(value: str) -> None:
    arguments = f'{{"a": {value}}}'
    push: list[Part] = [CallStart(0, "f"), CallArguments(0, arguments), CallEnd(0)]
    body = orjson.dumps(answer([push]).body(events_of(1, reason=EOS)))
    assert body.count(f'"input":{arguments}}}'.encode()) == 1
    streamed = [each for event in events_of(1, reason=EOS) for each in answer([push]).events(0, event)]
    assert streamed[-1] == {"type": "message_stop"}


def test_tokens_of_the_cache_are_told_apart() -> None:
    usage = answer().body(events_of(2, prompt_tokens=9, cached_tokens=8, reason=EOS))["usage"]
    assert (usage["input_tokens"], usage["cache_read_input_tokens"], usage["output_tokens"]) == (1, 8, 2)


@pytest.mark.parametrize(
    ("text", "before", "found"),
    [("ab", "a", "b"), ("abc", "a", "b"), ("ax", "a", "x"), ("x", "", "x"), ("a", "a", None)],
)
def test_the_sequence_that_ended_a_text_is_found(text: str, before: str, found: str | None) -> None:
    finish = Sample.finish(text, generated=1, text_before_stop=before, stopped=found is not None)
    assert stop_sequence(finish, ("bc", "b", "x")) == found
