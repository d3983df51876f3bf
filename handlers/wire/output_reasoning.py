"""What was thought before a response's words, as an item of its output that grows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from handlers.wire.output_items import Events
from handlers.wire.types import ItemStatus, OutputReasoning, ReasoningText, ResponseEvent


class ReasoningItem:
    """A thought."""

    def __init__(self, id: str, index: int, numbers: Iterator[int]) -> None:
        """`index` is its place in the output; `numbers` counts the events of the whole stream."""
        self._id = id
        self._index = index
        self._numbers = numbers
        self._pieces: list[str] = []

    def begin(self) -> Events:
        """Return the events that announce the item, and its text."""
        blank: OutputReasoning = {**self.told("in_progress"), "content": []}
        return [
            {
                "type": "response.output_item.added",
                "sequence_number": next(self._numbers),
                "output_index": self._index,
                "item": blank,
            },
            self._part("response.content_part.added"),
        ]

    def add(self, text: str) -> Events:
        """Return the event of a piece of the text."""
        self._pieces.append(text)
        return [
            {
                "type": "response.reasoning_text.delta",
                "sequence_number": next(self._numbers),
                "output_index": self._index,
                "item_id": self._id,
                "content_index": 0,
                "delta": text,
            }
        ]

    def end(self, status: ItemStatus) -> Events:
        """Return the events that close the text, and the item."""
        return [
            {
                "type": "response.reasoning_text.done",
                "sequence_number": next(self._numbers),
                "output_index": self._index,
                "item_id": self._id,
                "content_index": 0,
                "text": "".join(self._pieces),
            },
            self._part("response.content_part.done"),
            {
                "type": "response.output_item.done",
                "sequence_number": next(self._numbers),
                "output_index": self._index,
                "item": self.told(status),
            },
        ]

    def told(self, status: ItemStatus) -> OutputReasoning:
        """Return the item."""
        return {
            "type": "reasoning",
            "id": self._id,
            "status": status,
            "summary": [],
            "content": [self._text()],
        }

    def _text(self) -> ReasoningText:
        return {"type": "reasoning_text", "text": "".join(self._pieces)}

    def _part(
        self, kind: Literal["response.content_part.added", "response.content_part.done"]
    ) -> ResponseEvent:
        return {
            "type": kind,
            "sequence_number": next(self._numbers),
            "output_index": self._index,
            "item_id": self._id,
            "content_index": 0,
            "part": self._text(),
        }
