"""The content blocks of a message, as they grow: what they are, and the events that tell of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import orjson

from handlers.wire.parts import Logprobs
from handlers.wire.types import ItemStatus, Json, MessageEvent, OutputBlock


class OpenTextBlock:
    """A text."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._pieces: list[str] = []

    def begin(self) -> list[MessageEvent]:
        """Return the event that announces it."""
        return [
            {
                "type": "content_block_start",
                "index": self._index,
                "content_block": {"type": "text", "text": ""},
            }
        ]

    def add(self, text: str, logprobs: Logprobs) -> list[MessageEvent]:
        """Return the event of a piece of it."""
        self._pieces.append(text)
        return [
            {
                "type": "content_block_delta",
                "index": self._index,
                "delta": {"type": "text_delta", "text": text},
            }
        ]

    def end(self, status: ItemStatus) -> list[MessageEvent]:
        """Return the event that closes it."""
        return [{"type": "content_block_stop", "index": self._index}]

    def told(self, status: ItemStatus) -> OutputBlock:
        """Return it."""
        return {"type": "text", "text": "".join(self._pieces)}


class OpenThinking:
    """What was thought."""

    def __init__(self, index: int) -> None:
        self._index = index
        self._pieces: list[str] = []

    def begin(self) -> list[MessageEvent]:
        """Return the event that announces it."""
        return [
            {
                "type": "content_block_start",
                "index": self._index,
                "content_block": {"type": "thinking", "thinking": "", "signature": ""},
            }
        ]

    def add(self, text: str) -> list[MessageEvent]:
        """Return the event of a piece of it."""
        self._pieces.append(text)
        return [
            {
                "type": "content_block_delta",
                "index": self._index,
                "delta": {"type": "thinking_delta", "thinking": text},
            }
        ]

    def end(self, status: ItemStatus) -> list[MessageEvent]:
        """Return the events that sign and close it."""
        return [
            {
                "type": "content_block_delta",
                "index": self._index,
                "delta": {"type": "signature_delta", "signature": ""},
            },
            {"type": "content_block_stop", "index": self._index},
        ]

    def told(self, status: ItemStatus) -> OutputBlock:
        """Return it."""
        return {"type": "thinking", "thinking": "".join(self._pieces), "signature": ""}


class OpenToolUse:
    """A call."""

    def __init__(self, index: int, id: str, name: str) -> None:
        self._index = index
        self._id = id
        self._name = name
        self._pieces: list[str] = []

    def begin(self) -> list[MessageEvent]:
        """Return the event that announces it."""
        return [
            {
                "type": "content_block_start",
                "index": self._index,
                "content_block": {"type": "tool_use", "id": self._id, "name": self._name, "input": {}},
            }
        ]

    def add(self, arguments: str) -> list[MessageEvent]:
        """Return the event of a piece of its arguments."""
        self._pieces.append(arguments)
        return [
            {
                "type": "content_block_delta",
                "index": self._index,
                "delta": {"type": "input_json_delta", "partial_json": arguments},
            }
        ]

    def end(self, status: ItemStatus) -> list[MessageEvent]:
        """Return the event that closes it."""
        return [{"type": "content_block_stop", "index": self._index}]

    def told(self, status: ItemStatus) -> OutputBlock:
        """Return the call; one that was cut has no arguments, as a part of them is no object.

        They are sent as they were written: a schema allows numbers, and depths, that no value here can have.
        """
        arguments = "".join(self._pieces) if status == "completed" else ""
        written = cast(Mapping[str, Json], orjson.Fragment(arguments or "{}"))
        return {"type": "tool_use", "id": self._id, "name": self._name, "input": written}


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
