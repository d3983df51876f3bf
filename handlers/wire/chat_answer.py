"""The answer to a chat: one body, or the chunks of a stream."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from handlers.wire.chat import Chat
from handlers.wire.choice import Choice
from handlers.wire.openai import Stamp, counted_so_far, usage
from handlers.wire.outputs import Output, finish_of
from handlers.wire.types import ChatCompletion, ChatCompletionChunk, Usage
from inference.types import Event, Finish


class ChatAnswer:
    """The answer to one request; used once, either whole or streamed."""

    def __init__(
        self,
        chat: Chat,
        stamp: Stamp,
        choices: Sequence[Choice],
        *,
        prompt_tokens: int = 0,
        in_order: bool = False,
    ) -> None:
        """`prompt_tokens` is what the chunks of a stream count from; a whole answer knows it by itself.

        `in_order`: no choice of a stream begins before all of lower index have; its chunks wait for that.
        """
        self._choices = choices
        self._empty: ChatCompletionChunk = {  # which every chunk is but for its choice and counts
            "object": "chat.completion.chunk",
            "id": stamp.id,
            "created": stamp.created,
            "model": stamp.model,
            "system_fingerprint": stamp.fingerprint,
            "choices": [],
            "usage": None,
        }
        self._thinks = chat.thoughts is not None
        self._tells_usage = chat.include_usage
        self._counts = chat.continuous_usage
        self._prompt_tokens = prompt_tokens
        self._finishes: dict[int, Finish] = {}  # by choice
        self._begun = 0 if in_order else len(choices)  # so many choices may be told of, the first ones
        self._waiting: dict[int, list[ChatCompletionChunk]] = {}  # what there is of the others

    def body(self, outputs: Sequence[Output]) -> ChatCompletion:
        """Return the whole answer."""
        choices = [choice.whole(events) for choice, events in zip(self._choices, outputs, strict=True)]
        counts = self._usage(map(finish_of, outputs))
        return {**self._empty, "object": "chat.completion", "choices": choices, "usage": counts}

    def chunks(self, place: int, event: Event) -> list[ChatCompletionChunk]:
        """Return the chunks of an event of the choice `place`, and those that waited for it to begin."""
        counts = counted_so_far(self._prompt_tokens, event.index) if self._counts else None
        chunks: list[ChatCompletionChunk] = []
        for choice in self._choices[place].push(event):  # faster here than a comprehension
            chunks.append({**self._empty, "choices": [choice], "usage": counts})
        if place >= self._begun:
            chunks = self._in_turn(place, chunks)
        if event.finish is not None:
            chunks += self._end(place, event.finish)
        return chunks

    def _in_turn(self, place: int, chunks: list[ChatCompletionChunk]) -> list[ChatCompletionChunk]:
        """Return what may be told now that there are chunks of a choice whose turn had not come."""
        self._waiting.setdefault(place, []).extend(chunks)
        told: list[ChatCompletionChunk] = []
        while self._waiting.get(self._begun):
            told += self._waiting.pop(self._begun)
            self._begun += 1
        return told

    def _end(self, place: int, finish: Finish) -> list[ChatCompletionChunk]:
        """Return what follows the last chunk of a choice: after the last choice, the usage if asked for."""
        self._finishes[place] = finish
        if not self._tells_usage or len(self._finishes) < len(self._choices):
            return []
        finishes = (self._finishes[place] for place in sorted(self._finishes))
        return [{**self._empty, "usage": self._usage(finishes)}]

    def _usage(self, finishes: Iterable[Finish]) -> Usage:
        counts = usage(finishes, len(self._choices))
        if not self._thinks:
            return counts
        thought = sum(choice.thought_tokens for choice in self._choices)
        return counts | {"completion_tokens_details": {"reasoning_tokens": thought}}
