"""The answer to a Responses body: one body, or the events of a stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Literal

from handlers.wire.openai import usage
from handlers.wire.output_items import Events
from handlers.wire.outputs import finish_of, values_of
from handlers.wire.response_output import Output
from handlers.wire.types import (
    ModelResponse,
    ResponseError,
    ResponseFailedEvent,
    ResponseStateEvent,
    ResponseUsage,
)
from inference.types import Event, Finish, FinishReason, Request

State = Literal["response.created", "response.in_progress", "response.completed", "response.incomplete"]
LAST_TOLD = 4  # times that a stream's last events have all log-probabilities


class ResponseAnswer:
    """The answer to one request; used once, either whole or streamed."""

    def __init__(
        self, blank: ModelResponse, output: Output, numbers: Iterator[int], now: Callable[[], int]
    ) -> None:
        """`numbers` counts the events, those of the output included; `now` tells the time, in seconds."""
        self._blank = blank
        self._output = output
        self._numbers = numbers
        self._now = now
        self._begun = False
        self._told = 0  # values

    def body(self, events: Sequence[Event]) -> ModelResponse:
        """Return the whole answer."""
        for event in events:
            self._output.push(event)
        return self._ended(finish_of(events))

    def events(self, place: int, event: Event) -> Events:
        """Return what an event of the engine brings about; `place` is 0, as there is one text."""
        told: Events = [*self._begin(), *self._output.push(event)]
        if event.finish is not None:
            answer = self._ended(event.finish)
            whole = answer["status"] == "completed"
            told.append(self._state("response.completed" if whole else "response.incomplete", answer))
        return told

    def values(self, output: Sequence[Event], request: Request) -> int:
        """Return about how much some events tell; the last ones tell all again."""
        new = values_of(output, request)
        self._told += new
        return new + (LAST_TOLD * self._told if output and output[-1].finish else 0)

    def failed(self, error: ResponseError) -> list[ResponseStateEvent | ResponseFailedEvent]:
        """Return the last events of a stream that fails, if need be behind those of its beginning."""
        answer: ModelResponse = {
            **self._blank,
            "status": "failed",
            "error": error,
            "output": self._output.items(),
        }
        begun = self._begin()
        last: ResponseFailedEvent = {
            "type": "response.failed",
            "sequence_number": next(self._numbers),
            "response": answer,
        }
        return [*begun, last]

    def _begin(self) -> list[ResponseStateEvent]:
        if self._begun:
            return []
        self._begun = True
        return [
            self._state("response.created", self._blank),
            self._state("response.in_progress", self._blank),
        ]

    def _state(self, kind: State, answer: ModelResponse) -> ResponseStateEvent:
        return {"type": kind, "sequence_number": next(self._numbers), "response": answer}

    def _ended(self, finish: Finish) -> ModelResponse:
        cut = finish.reason_before_stop is FinishReason.LENGTH
        return {
            **self._blank,
            "status": "incomplete" if cut else "completed",
            "completed_at": None if cut else self._now(),
            "incomplete_details": {"reason": "max_output_tokens"} if cut else None,
            "output": self._output.items(),
            "usage": _usage(finish, self._output.thought_tokens),
        }


def _usage(finish: Finish, thought_tokens: int) -> ResponseUsage:
    counts = usage([finish])
    return {
        "input_tokens": counts["prompt_tokens"],
        "input_tokens_details": {"cached_tokens": finish.cached_tokens, "cache_write_tokens": 0},
        "output_tokens": counts["completion_tokens"],
        "output_tokens_details": {"reasoning_tokens": thought_tokens},
        "total_tokens": counts["total_tokens"],
    }
