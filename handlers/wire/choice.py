"""One choice of a chat's answer, whole or as it grows; both are made of the same deltas."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from handlers.wire.calls import CallDeltas, message, text_delta, with_role
from handlers.wire.openai import end_reason, finish_reason
from handlers.wire.outputs import finish_of
from handlers.wire.types import (
    ChatCompletionChoice,
    ChatCompletionComplete,
    ChatCompletionDelta,
    ChatCompletionLogprobs,
    ChatFinishReason,
)
from inference.types import Event, Finish, FinishReason

Tell = Callable[[Sequence[Event]], ChatCompletionLogprobs]  # the log-probabilities of events


class Choice(Protocol):
    """One answer of possibly several; used for one generation, either whole or streamed."""

    @property
    def thought_tokens(self) -> int:
        """Return how many tokens were thought so far, where that is told apart."""

    def push(self, event: Event) -> Sequence[ChatCompletionChoice]:
        """Return the choices of the chunks that an event makes; the last event makes at least one."""

    def whole(self, events: Sequence[Event]) -> ChatCompletionComplete:
        """Return the choice of a whole answer from all of its events."""


class TextChoice:
    """A choice that is text alone: one chunk for each token."""

    thought_tokens = 0

    def __init__(self, index: int, tell: Tell | None, *, as_tgi: bool = False) -> None:
        """`as_tgi`: each delta names the role, and no chunk goes before that of the first token."""
        self._index = index
        self._tell = tell
        self._as_tgi = as_tgi
        self._begun = False

    def push(self, event: Event) -> Sequence[ChatCompletionChoice]:
        """Return the choice of the event's chunk."""
        delta: ChatCompletionDelta = text_delta(event.delta)
        before: tuple[ChatCompletionChoice, ...] = ()
        if not self._begun:
            delta, before = _begin(self._index, delta, None if self._as_tgi else self._tell)
            self._begun = True
        if self._as_tgi:
            delta = with_role(delta)
        chunk: ChatCompletionChoice = {
            "index": self._index,
            "delta": delta,
            "logprobs": None if self._tell is None else self._tell((event,)),
            "finish_reason": None if event.finish is None else finish_reason(event),
        }
        return (*before, chunk)

    def whole(self, events: Sequence[Event]) -> ChatCompletionComplete:
        """Return the choice of a whole answer."""
        return {
            "index": self._index,
            "message": message([text_delta("".join(event.delta for event in events))]),
            "logprobs": None if self._tell is None else self._tell(events),
            "finish_reason": end_reason(finish_of(events)),
        }


class PartsChoice:
    """A choice of thoughts, text and calls: a chunk for each piece of one of them.

    Tokens that make no chunk, those of the calls' own notation, have their log-probabilities in the next one.
    Those of thoughts aren't told: OpenAI's are of the content.
    """

    def __init__(self, index: int, tell: Tell | None, calls: CallDeltas, *, as_tgi: bool = False) -> None:
        """`as_tgi`: each delta names the role, and no chunk goes before that of the first token."""
        self._index = index
        self._tell = tell
        self._calls = calls
        self._as_tgi = as_tgi
        self._untold: list[Event] = []
        self._begun = False

    def push(self, event: Event) -> Sequence[ChatCompletionChoice]:
        """Return the choices of the event's chunks."""
        deltas = self._push(event)
        if not deltas:
            return ()
        before: tuple[ChatCompletionChoice, ...] = ()
        if not self._begun:
            deltas[0], before = _begin(self._index, deltas[0], None if self._as_tgi else self._tell)
            self._begun = True
        if self._as_tgi:
            deltas = list(map(with_role, deltas))
        told, self._untold = self._untold, []
        chunks = [self._chunk(delta, told if place == 0 else []) for place, delta in enumerate(deltas)]
        chunks[-1]["finish_reason"] = None if event.finish is None else self._reason(event.finish)
        return (*before, *chunks)

    def whole(self, events: Sequence[Event]) -> ChatCompletionComplete:
        """Return the choice of a whole answer."""
        told = message(delta for event in events for delta in self._push(event))
        return {
            "index": self._index,
            "message": told,
            "logprobs": None if self._tell is None else self._tell(self._untold),
            "finish_reason": self._reason(finish_of(events)),
        }

    @property
    def thought_tokens(self) -> int:
        """Return how many tokens were thought so far."""
        return self._calls.thought_tokens

    def _push(self, event: Event) -> list[ChatCompletionDelta]:
        """Return the deltas of an event, which is told of later unless nothing of it turns out to be said."""
        known = self._calls.untold_tokens
        self._untold.append(event)
        deltas = self._calls.push(event)
        del self._untold[len(self._untold) - (self._calls.untold_tokens - known) :]
        return deltas

    def _chunk(self, delta: ChatCompletionDelta, told: Sequence[Event]) -> ChatCompletionChoice:
        return {
            "index": self._index,
            "delta": delta,
            "logprobs": None if self._tell is None else self._tell(told),
            "finish_reason": None,
        }

    def _reason(self, finish: Finish) -> ChatFinishReason:
        """Return why the answer ended: calls that weren't cut are to be answered."""
        if finish.reason_before_stop is FinishReason.LENGTH or not self._calls.complete:
            return end_reason(finish)
        return "tool_calls"


def _begin(
    index: int, delta: ChatCompletionDelta, tell: Tell | None
) -> tuple[ChatCompletionDelta, tuple[ChatCompletionChoice, ...]]:
    """Return the first delta of a choice, and the chunk that goes before it.

    With `tell` a text begins with a chunk that has an empty list of log-probabilities: OpenAI's JavaScript
    client has those of a choice's first chunk twice. Of a call every chunk has a piece, as at TGI.
    """
    if tell is None or "tool_calls" in delta:
        return with_role(delta), ()
    opening = with_role(text_delta(""))
    return delta, ({"index": index, "delta": opening, "logprobs": tell(()), "finish_reason": None},)
