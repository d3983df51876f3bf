"""What was thought before a response's words, as an item of its output that grows."""

from __future__ import annotations

from handlers.wire.output_items import ContentItem, Events
from handlers.wire.types import ItemStatus, OutputReasoning, ReasoningText, ResponseEvent


class ReasoningItem(ContentItem):
    """A thought."""

    def add(self, text: str) -> Events:
        """Return the event of a piece of it."""
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

    def told(self, status: ItemStatus) -> OutputReasoning:
        """Return the item."""
        return {
            "type": "reasoning",
            "id": self._id,
            "status": status,
            "summary": [],
            "content": [self._text()],
        }

    def _blank(self) -> OutputReasoning:
        return {**self.told("in_progress"), "content": []}

    def _text(self) -> ReasoningText:
        return {"type": "reasoning_text", "text": "".join(self._pieces)}

    def _whole(self) -> ResponseEvent:
        return {
            "type": "response.reasoning_text.done",
            "sequence_number": next(self._numbers),
            "output_index": self._index,
            "item_id": self._id,
            "content_index": 0,
            "text": self._text()["text"],
        }
