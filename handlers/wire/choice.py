"""One choice of a chat's answer, whole or as it grows; both are made of the same deltas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from handlers.wire.calls import CallDeltas, message, text_delta, with_role
from handlers.wire.openai import finish_reason
from inference.types import Event, FinishReason

Json = dict[str, Any]
Tell = Callable[[Sequence[Event]], Json]  # the log-probabilities of events

TOOL_CALLS = "tool_calls"  # the finish reason


class Choice(Protocol):
    """One answer of possibly several; used for one generation, either whole or streamed."""

    def push(self, event: Event) -> Sequence[Json]:
        """Return the choices of the chunks that an event makes; the last event makes at least one."""

    def whole(self, events: Sequence[Event]) -> Json:
        """Return the choice of a whole answer from all of its events."""


class TextChoice:
    """A choice that is text alone: one chunk for each token."""

    def __init__(self, index: int, tell: Tell | None) -> None:
        self._index = index
        self._tell = tell
        self._begun = False

    def push(self, event: Event) -> Sequence[Json]:
        """Return the choice of the event's chunk."""
        delta = {"content": event.delta}
        if not self._begun:
            delta, self._begun = with_role(delta), True
        return (
            {
                "index": self._index,
                "delta": delta,
                "logprobs": None if self._tell is None else self._tell((event,)),
                "finish_reason": None if event.finish is None else finish_reason(event),
            },
        )

    def whole(self, events: Sequence[Event]) -> Json:
        """Return the choice of a whole answer."""
        return {
            "index": self._index,
            "message": message([text_delta("".join(event.delta for event in events))]),
            "logprobs": None if self._tell is None else self._tell(events),
            "finish_reason": finish_reason(events[-1]),
        }


class ToolChoice:
    """A choice that may call tools: a chunk for each piece of text or of a call.

    Tokens that make no chunk, those of the calls' own notation, have their log-probabilities in the next one.
    """

    def __init__(self, index: int, tell: Tell | None, calls: CallDeltas) -> None:
        self._index = index
        self._tell = tell
        self._calls = calls
        self._untold: list[Event] = []
        self._begun = False

    def push(self, event: Event) -> Sequence[Json]:
        """Return the choices of the event's chunks."""
        self._untold.append(event)
        deltas = self._calls.push(event)
        if not deltas:
            return ()
        if not self._begun:
            deltas[0], self._begun = with_role(deltas[0]), True
        told, self._untold = self._untold, []
        chunks = [self._chunk(delta, told if place == 0 else []) for place, delta in enumerate(deltas)]
        chunks[-1]["finish_reason"] = self._reason(event)
        return chunks

    def whole(self, events: Sequence[Event]) -> Json:
        """Return the choice of a whole answer."""
        return {
            "index": self._index,
            "message": message(delta for event in events for delta in self._calls.push(event)),
            "logprobs": None if self._tell is None else self._tell(events),
            "finish_reason": self._reason(events[-1]),
        }

    def _chunk(self, delta: Json, told: Sequence[Event]) -> Json:
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": None if self._tell is None else self._tell(told),
            "finish_reason": None,
        }

    def _reason(self, event: Event) -> str | None:
        """Return why the answer ended: calls that weren't cut are to be answered."""
        if event.finish is None or event.finish.reason is FinishReason.LENGTH or not self._calls.complete:
            return finish_reason(event)
        return TOOL_CALLS
