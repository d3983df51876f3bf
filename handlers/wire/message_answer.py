"""The answer to a Messages body: one body, or the events of a stream."""

from __future__ import annotations

from collections.abc import Sequence

from handlers.wire.openai import Stamp
from handlers.wire.outputs import finish_of, values_of
from handlers.wire.parts import Parts
from handlers.wire.types import MessageEnd, MessageEvent, MessageUsage, ModelMessage, OutputBlock, StopReason
from inference.types import Event, Finish, FinishReason, Request


class MessageAnswer:
    """The answer to one request; used once, either whole or streamed."""

    def __init__(
        self, stamp: Stamp, request: Request, parts: Parts[MessageEvent, OutputBlock], prompt_tokens: int
    ) -> None:
        """`prompt_tokens` is what a stream begins with; a whole answer knows it by itself."""
        self._request = request
        self._parts = parts
        self._begun = False
        self._blank: ModelMessage = {
            "id": stamp.id,
            "type": "message",
            "role": "assistant",
            "model": stamp.model,
            "content": [],
            "stop_reason": None,
            "stop_sequence": None,
            "usage": _usage(prompt_tokens, 0, 0),
        }

    def body(self, events: Sequence[Event]) -> ModelMessage:
        """Return the whole answer."""
        for event in events:
            self._parts.push(event)
        finish = finish_of(events)
        end = self._end(finish)
        return {
            **self._blank,
            "content": self._parts.items(),
            "stop_reason": end["stop_reason"],
            "stop_sequence": end["stop_sequence"],
            "usage": _usage_of(finish),
        }

    def events(self, place: int, event: Event) -> list[MessageEvent]:
        """Return what an event of the engine brings about; `place` is 0, as there is one text."""
        told: list[MessageEvent] = []
        if not self._begun:
            self._begun = True
            told.append({"type": "message_start", "message": self._blank})
        told += self._parts.push(event)
        if event.finish is not None:
            end, counts = self._end(event.finish), _usage_of(event.finish)
            told += [{"type": "message_delta", "delta": end, "usage": counts}, {"type": "message_stop"}]
        return told

    def values(self, output: Sequence[Event], request: Request) -> int:
        """Return about how much some events tell."""
        return values_of(output, request)

    def _end(self, finish: Finish) -> MessageEnd:
        reason = self._reason(finish)
        stopped = stop_sequence(finish, self._request.stop) if reason == "stop_sequence" else None
        return {"stop_reason": reason, "stop_sequence": stopped}

    def _reason(self, finish: Finish) -> StopReason:
        """Return why the answer ended: calls that weren't cut are to be answered."""
        if finish.reason_before_stop is FinishReason.LENGTH:
            most = self._request.max_new_tokens
            whole = most is not None and finish.generated_tokens >= most
            return "max_tokens" if whole else "model_context_window_exceeded"
        if self._parts.called:
            return "tool_use"
        return "stop_sequence" if finish.reason_before_stop is FinishReason.STOP else "end_turn"


def stop_sequence(finish: Finish, stop: Sequence[str]) -> str | None:
    """Return which of the sequences ended a text: of several that begin at one place, the shortest."""
    rest = finish.text[len(finish.text_before_stop) :]
    return min((each for each in stop if rest.startswith(each)), key=len, default=None)


def _usage_of(finish: Finish) -> MessageUsage:
    return _usage(finish.prompt_tokens, finish.cached_tokens, finish.generated_tokens)


def _usage(prompt: int, cached: int, generated: int) -> MessageUsage:
    return {
        "input_tokens": prompt - cached,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": cached,
        "output_tokens": generated,
    }
