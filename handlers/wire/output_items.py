"""The items of a response's output, as they grow: what they are, and the events that tell of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Literal, TypeAlias

from handlers.wire.parts import Logprobs
from handlers.wire.types import (
    ChatCompletionLogprob,
    ItemStatus,
    OutputItem,
    OutputText,
    OutputTextMessage,
    ReasoningText,
    ResponseEvent,
)

Events: TypeAlias = list[ResponseEvent]


class OpenItem(ABC):
    """An item that goes on."""

    def __init__(self, id: str, index: int, numbers: Iterator[int]) -> None:
        """`index` is its place in the output; `numbers` counts the events of the whole stream."""
        self._id = id
        self._index = index
        self._numbers = numbers
        self._pieces: list[str] = []

    @abstractmethod
    def told(self, status: ItemStatus) -> OutputItem:
        """Return it, as far as it has come."""

    def _added(self, item: OutputItem) -> ResponseEvent:
        return self._item("response.output_item.added", item)

    def _done(self, status: ItemStatus) -> ResponseEvent:
        return self._item("response.output_item.done", self.told(status))

    def _item(
        self, kind: Literal["response.output_item.added", "response.output_item.done"], item: OutputItem
    ) -> ResponseEvent:
        number = next(self._numbers)
        return {"type": kind, "sequence_number": number, "output_index": self._index, "item": item}


class ContentItem(OpenItem):
    """An item with one text."""

    def begin(self) -> Events:
        """Return the events that announce the item, and its text."""
        return [self._added(self._blank()), self._part("response.content_part.added")]

    def end(self, status: ItemStatus) -> Events:
        """Return the events that close the text, and the item."""
        return [self._whole(), self._part("response.content_part.done"), self._done(status)]

    @abstractmethod
    def _blank(self) -> OutputItem:
        """Return the item before its text."""

    @abstractmethod
    def _text(self) -> OutputText | ReasoningText:
        """Return the text, as far as it has come."""

    @abstractmethod
    def _whole(self) -> ResponseEvent:
        """Return the event that has all of the text."""

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


class TextItem(ContentItem):
    """A message of the assistant with one text."""

    def __init__(self, id: str, index: int, numbers: Iterator[int]) -> None:
        super().__init__(id, index, numbers)
        self._logprobs: list[ChatCompletionLogprob] = []

    def add(self, text: str, logprobs: Logprobs) -> Events:
        """Return the event of a piece of the text."""
        self._pieces.append(text)
        self._logprobs += logprobs
        return [
            {
                "type": "response.output_text.delta",
                "sequence_number": next(self._numbers),
                "output_index": self._index,
                "item_id": self._id,
                "content_index": 0,
                "delta": text,
                "logprobs": list(logprobs),
            }
        ]

    def told(self, status: ItemStatus) -> OutputTextMessage:
        """Return the message."""
        return {
            "type": "message",
            "id": self._id,
            "status": status,
            "role": "assistant",
            "content": [self._text()],
        }

    def _blank(self) -> OutputTextMessage:
        return {**self.told("in_progress"), "content": []}

    def _text(self) -> OutputText:
        return {
            "type": "output_text",
            "text": "".join(self._pieces),
            "annotations": [],
            "logprobs": list(self._logprobs),
        }

    def _whole(self) -> ResponseEvent:
        text = self._text()
        return {
            "type": "response.output_text.done",
            "sequence_number": next(self._numbers),
            "output_index": self._index,
            "item_id": self._id,
            "content_index": 0,
            "text": text["text"],
            "logprobs": text["logprobs"],
        }
