"""The answer to a chat: one body, or the chunks of a stream."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from handlers.wire.chat import Chat
from handlers.wire.choice import Choice
from handlers.wire.openai import Stamp, counted_so_far, usage
from handlers.wire.outputs import Output, finish_of
from inference.types import Event, Finish

Json = dict[str, Any]


class ChatAnswer:
    """The answer to one request; used once, either whole or streamed."""

    def __init__(
        self, chat: Chat, stamp: Stamp, choices: Sequence[Choice], *, prompt_tokens: int = 0
    ) -> None:
        """`prompt_tokens` is what the chunks of a stream count from; a whole answer knows it by itself."""
        self._choices = choices
        self._head = {  # of every chunk
            "object": "chat.completion.chunk",
            "id": stamp.id,
            "created": stamp.created,
            "model": stamp.model,
            "system_fingerprint": stamp.fingerprint,
        }
        self._tells_usage = chat.include_usage
        self._counts = chat.continuous_usage
        self._prompt_tokens = prompt_tokens
        self._finishes: dict[int, Finish] = {}  # by choice

    def body(self, outputs: Sequence[Output]) -> Json:
        """Return the whole answer."""
        choices = [choice.whole(events) for choice, events in zip(self._choices, outputs, strict=True)]
        counts = usage(map(finish_of, outputs), len(outputs))
        return {**self._head, "object": "chat.completion", "choices": choices, "usage": counts}

    def chunks(self, place: int, event: Event) -> list[Json]:
        """Return the chunks of an event of the choice `place`."""
        counts = counted_so_far(self._prompt_tokens, event.index) if self._counts else None
        chunks = []
        for choice in self._choices[place].push(event):  # faster here than a comprehension
            chunks.append({**self._head, "choices": [choice], "usage": counts})
        if event.finish is not None:
            chunks += self._end(place, event.finish)
        return chunks

    def _end(self, place: int, finish: Finish) -> list[Json]:
        """Return what follows the last chunk of a choice: after the last choice, the usage if asked for."""
        self._finishes[place] = finish
        if not self._tells_usage or len(self._finishes) < len(self._choices):
            return []
        finishes = (self._finishes[place] for place in sorted(self._finishes))
        return [{**self._head, "choices": [], "usage": usage(finishes, len(self._choices))}]
