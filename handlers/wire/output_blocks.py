"""The content blocks of a message, as they grow: what they are, and the events that tell of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import cast

import orjson

from handlers.wire.parts import Logprobs
from handlers.wire.types import BlockPiece, ItemStatus, Json, MessageEvent, OutputBlock


class OpenBlock(ABC):
    """A block that goes on."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._pieces: list[str] = []

    def begin(self) -> list[MessageEvent]:
        """Return the event that announces it."""
        return [{"type": "content_block_start", "index": self._index, "content_block": self._blank()}]

    def end(self, status: ItemStatus) -> list[MessageEvent]:
        """Return the event that closes it."""
        return [{"type": "content_block_stop", "index": self._index}]

    @abstractmethod
    def _blank(self) -> OutputBlock:
        """Return it before its first piece."""

    def _piece(self, piece: BlockPiece) -> MessageEvent:
        return {"type": "content_block_delta", "index": self._index, "delta": piece}


class OpenTextBlock(OpenBlock):
    """A text."""

    def add(self, text: str, logprobs: Logprobs) -> list[MessageEvent]:
        """Return the event of a piece of it."""
        self._pieces.append(text)
        return [self._piece({"type": "text_delta", "text": text})]

    def told(self, status: ItemStatus) -> OutputBlock:
        """Return it."""
        return {"type": "text", "text": "".join(self._pieces)}

    def _blank(self) -> OutputBlock:
        return {"type": "text", "text": ""}


class OpenThinking(OpenBlock):
    """What was thought."""

    def add(self, text: str) -> list[MessageEvent]:
        """Return the event of a piece of it."""
        self._pieces.append(text)
        return [self._piece({"type": "thinking_delta", "thinking": text})]

    def end(self, status: ItemStatus) -> list[MessageEvent]:
        """Return the events that sign and close it."""
        return [self._piece({"type": "signature_delta", "signature": ""}), *super().end(status)]

    def told(self, status: ItemStatus) -> OutputBlock:
        """Return it."""
        return {"type": "thinking", "thinking": "".join(self._pieces), "signature": ""}

    def _blank(self) -> OutputBlock:
        return {"type": "thinking", "thinking": "", "signature": ""}


class OpenToolUse(OpenBlock):
    """A call."""

    def __init__(self, index: int, id: str, name: str) -> None:
        super().__init__(index)
        self._id = id
        self._name = name

    def add(self, arguments: str) -> list[MessageEvent]:
        """Return the event of a piece of its arguments."""
        self._pieces.append(arguments)
        return [self._piece({"type": "input_json_delta", "partial_json": arguments})]

    def told(self, status: ItemStatus) -> OutputBlock:
        """Return the call; one that was cut has no arguments, as a part of them is no object.

        They are sent as they were written: a schema allows numbers, and depths, that no value here can have.
        """
        arguments = "".join(self._pieces) if status == "completed" else ""
        return self._call(cast(Mapping[str, Json], orjson.Fragment(arguments or "{}")))

    def _blank(self) -> OutputBlock:
        return self._call({})

    def _call(self, arguments: Mapping[str, Json]) -> OutputBlock:
        return {"type": "tool_use", "id": self._id, "name": self._name, "input": arguments}


class Blocks:
    """Makes the blocks of one answer."""

    def text(self, at: int) -> OpenTextBlock:
        """Return a text that begins."""
        return OpenTextBlock(at)

    def thought(self, at: int) -> OpenThinking:
        """Return a thought that begins."""
        return OpenThinking(at)

    def call(self, at: int, id: str, name: str) -> OpenToolUse:
        """Return a call that begins."""
        return OpenToolUse(at, id, name)
