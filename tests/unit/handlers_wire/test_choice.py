from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from handlers.wire.calls import CallDeltas, CallIds, call_delta
from handlers.wire.choice import Choice, PartsChoice, TextChoice
from handlers.wire.openai import logprobs
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, TextPart
from inference.types import Event, FinishReason, Token
from tests.unit.handlers_wire.conftest import Sample
from tests.unit.handlers_wire.scripted import ScriptedParser

Json = dict[str, Any]
Fits = Callable[[str, Any], bool]
TELL = partial(logprobs, top=1)
CALL: list[Part] = [CallStart(0, "f"), CallArguments(0, "{}"), CallEnd(0)]


def events_of(count: int, reason: FinishReason = FinishReason.EOS) -> tuple[Event, ...]:
    return Sample.output([Token(at, f"t{at}", -1.0, False) for at in range(count)], top=True, reason=reason)


def calling(pushes: Sequence[Sequence[Part]], *, tell: Any = TELL) -> PartsChoice:
    return PartsChoice(0, tell, CallDeltas(ScriptedParser(pushes), CallIds(()).of(0)))


def streamed(choice: Choice, events: Sequence[Event]) -> list[Any]:
    return [chunk for event in events for chunk in choice.push(event)]


def added_up(chunks: Sequence[Json]) -> Json:
    """Return the choice that a client puts together of a stream's choices, as OpenAI's client does."""
    *before, last = [chunk["finish_reason"] for chunk in chunks]
    assert set(before) <= {None}
    role, content = "", ""
    calls: dict[int, dict[str, str]] = {}
    for chunk in chunks:
        role += chunk["delta"].get("role", "")
        content += chunk["delta"].get("content", "")
        for part in chunk["delta"].get("tool_calls", []):
            call = calls.setdefault(part["index"], {"id": "", "name": "", "arguments": ""})
            call["id"] += part["id"] or ""
            call["name"] += part["function"]["name"] or ""
            call["arguments"] += part["function"]["arguments"]
    return {
        "index": chunks[0]["index"],
        "role": role,
        "content": content,
        "calls": list(calls.values()),
        "logprobs": [entry for chunk in chunks for entry in chunk["logprobs"]["content"]],
        "finish_reason": last,
    }


def told_at_once(choice: Any) -> Json:
    """Return a whole answer's choice in the same form."""
    calls = choice["message"].get("tool_calls", [])
    assert choice["message"]["content"] != "" or not calls
    return {
        "index": choice["index"],
        "role": choice["message"]["role"],
        "content": choice["message"]["content"] or "",
        "calls": [{"id": call["id"], **without_description(call["function"])} for call in calls],
        "logprobs": choice["logprobs"]["content"],
        "finish_reason": choice["finish_reason"],
    }


def without_description(function: Json) -> Json:
    assert function["description"] is None
    return {name: function[name] for name in ("name", "arguments")}


PARTS = some.lists(
    some.one_of(
        some.text("ab {", min_size=1).map(TextPart),
        some.lists(some.text('{"a1', min_size=1), max_size=3).map(
            lambda texts: [CallStart(0, "f"), *(CallArguments(0, text) for text in texts), CallEnd(0)]
        ),
    ),
    max_size=4,
)


@given(PARTS, some.lists(some.integers(0, 3), min_size=1, max_size=8), some.sampled_from(FinishReason))
def test_a_stream_adds_up_to_the_whole_whatever_a_token_holds(
    drawn: list[Any], sizes: list[int], reason: FinishReason
) -> None:
    parts = numbered(drawn)
    pushes = [[parts.pop(0) for _ in range(min(size, len(parts)))] for size in sizes]
    pushes[-1] += parts
    events = events_of(len(pushes), reason)
    chunks = streamed(calling(pushes), events)
    assert added_up(chunks) == told_at_once(calling(pushes).whole(events))
    assert all(len(chunk["delta"].get("tool_calls", [1])) == 1 for chunk in chunks)


def numbered(drawn: list[Any]) -> list[Part]:
    """Return the parts of texts and calls with the calls' own indexes."""
    parts: list[Part] = []
    calls = 0
    for item in drawn:
        if isinstance(item, TextPart):
            parts.append(item)
            continue
        texts = [part.text for part in item if isinstance(part, CallArguments)]
        parts += [CallStart(calls, "f"), *(CallArguments(calls, text) for text in texts), CallEnd(calls)]
        calls += 1
    return parts


@pytest.mark.parametrize(
    ("pushes", "reason", "word"),
    [
        ([CALL, []], FinishReason.EOS, "tool_calls"),
        ([CALL, []], FinishReason.STOP, "tool_calls"),
        ([CALL, []], FinishReason.LENGTH, "length"),
        ([CALL[:2]], FinishReason.LENGTH, "length"),
        ([CALL[:2]], FinishReason.STOP, "stop"),
        ([[TextPart("x")], []], FinishReason.EOS, "stop"),
        ([[TextPart("x")]], FinishReason.LENGTH, "length"),
    ],
)
def test_calls_are_the_reason_unless_one_was_cut(pushes: Any, reason: FinishReason, word: str) -> None:
    events = events_of(len(pushes), reason)
    assert word == streamed(calling(pushes), events)[-1]["finish_reason"]
    assert word == calling(pushes).whole(events)["finish_reason"]


def test_after_a_call_the_last_chunk_has_an_empty_piece_of_it(fits: Fits) -> None:
    chunks = streamed(calling([CALL, [], []], tell=None), events_of(3))
    assert chunks[0]["delta"] == {"role": "assistant", **call_delta(0, "{", id="0", name="f")}
    assert chunks[-1] == {
        "index": 0,
        "delta": call_delta(0),
        "logprobs": None,
        "finish_reason": "tool_calls",
    }
    assert all(fits("ChatCompletionChoice", chunk) for chunk in chunks)
    assert fits("ChatCompletionComplete", calling([CALL, [], []]).whole(events_of(3)))


def test_text_before_a_call_is_the_messages_content(fits: Fits) -> None:
    choice: Any = calling([[TextPart("Let me see.")], CALL, []]).whole(events_of(3))
    assert choice["message"]["content"] == "Let me see."
    assert len(choice["message"]["tool_calls"]) == 1
    assert fits("ChatCompletionComplete", choice)


def test_log_probabilities_of_notation_come_with_the_next_chunk() -> None:
    chunks = streamed(calling([[], [TextPart("x")], [], CALL]), events_of(4))
    told = [[entry["token"] for entry in chunk["logprobs"]["content"]] for chunk in chunks]
    assert told == [[], ["t0", "t1"], ["t2", "t3"], []]


def test_text_alone_is_a_chunk_for_each_token(fits: Fits) -> None:
    events = events_of(3)
    chunks = streamed(TextChoice(2, TELL), events)
    assert [chunk["delta"]["content"] for chunk in chunks] == ["", "t0", "t1", "t2"]
    assert added_up(chunks) == told_at_once(TextChoice(2, TELL).whole(events))
    assert all(fits("ChatCompletionChoice", chunk) for chunk in chunks)
    assert chunks[0]["index"] == 2


def test_text_with_log_probabilities_begins_with_a_chunk_that_has_none() -> None:
    """OpenAI's JavaScript client has the log-probabilities of a choice's first chunk twice."""
    for choice in (TextChoice(3, TELL), calling([[TextPart("t0")], [TextPart("t1")]])):
        first, *chunks = streamed(choice, events_of(2))
        assert first["delta"] == {"role": "assistant", "content": ""}
        assert (first["logprobs"]["content"], first["finish_reason"]) == ([], None)
        assert [chunk["delta"] for chunk in chunks] == [{"content": "t0"}, {"content": "t1"}]
        assert [len(chunk["logprobs"]["content"]) for chunk in chunks] == [1, 1]


def test_no_chunk_is_without_a_token_to_whoever_knows_tgi() -> None:
    for choice in (
        TextChoice(0, TELL, as_tgi=True),
        PartsChoice(
            0,
            TELL,
            CallDeltas(ScriptedParser([[TextPart("t0")], [TextPart("t1")]]), CallIds(()).of(0)),
            as_tgi=True,
        ),
    ):
        chunks = streamed(choice, events_of(2))
        assert [chunk["delta"].get("content") for chunk in chunks] == ["t0", "t1"]
        assert all(chunk["logprobs"] and len(chunk["logprobs"]["content"]) == 1 for chunk in chunks)


def test_text_without_log_probabilities_begins_with_its_first_token() -> None:
    first, second = streamed(TextChoice(0, None), events_of(2))
    assert (first["delta"], second["delta"]) == ({"role": "assistant", "content": "t0"}, {"content": "t1"})


def test_every_chunk_of_a_call_has_a_piece_of_it() -> None:
    """As TGI's clients take for granted, also with log-probabilities."""
    assert all("tool_calls" in chunk["delta"] for chunk in streamed(calling([CALL]), events_of(1)))


def test_every_delta_names_the_role_to_whoever_wants_it(fits: Fits) -> None:
    """TGI's own client takes no chunk without it."""
    texts = TextChoice(0, TELL, as_tgi=True)
    calls = PartsChoice(
        0, None, CallDeltas(ScriptedParser([[TextPart("x")], CALL, []]), CallIds(()).of(0)), as_tgi=True
    )
    for choice in (texts, calls):
        chunks = streamed(choice, events_of(3))
        assert {chunk["delta"]["role"] for chunk in chunks} == {"assistant"}
        assert all(fits("ChatCompletionChoice", chunk) for chunk in chunks)


class Thinking(ScriptedParser):
    """Finds out at the third token that it and the one before are none of the answer's."""

    def push(self, event: Event) -> tuple[Part, ...]:
        self.untold_tokens += 2 if event.index == 3 else 0
        return super().push(event)


def test_tokens_that_turn_out_not_to_be_said_have_no_log_probabilities() -> None:
    def thinking() -> PartsChoice:
        parser = Thinking([[], [], [], [TextPart("a")], [TextPart("b")]])
        return PartsChoice(0, TELL, CallDeltas(parser, CallIds(()).of(0)))

    events = events_of(5)
    whole = told_at_once(thinking().whole(events))
    assert [entry["token"] for entry in whole["logprobs"]] == ["t0", "t3", "t4"]
    assert added_up(streamed(thinking(), events)) == whole
