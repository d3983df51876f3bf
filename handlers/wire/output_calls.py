"""The calls of a response's output, as they grow: of functions, of custom tools, and searches for tools."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import cast

import orjson

from handlers.wire.custom_tools import InputReader
from handlers.wire.offers import CUSTOM, SEARCH, Offer
from handlers.wire.output_items import Events, OpenItem
from handlers.wire.types import ItemStatus, Json, OutputCall, OutputCustomCall, OutputItem, OutputSearchCall


class OpenCallItem(OpenItem):
    """A call."""

    def __init__(self, id: str, index: int, numbers: Iterator[int], *, call_id: str, offer: Offer) -> None:
        super().__init__(id, index, numbers)
        self._call_id = call_id
        self._offer = offer

    def begin(self) -> Events:
        """Return the event that announces it."""
        return [self._added(self.told("in_progress"))]

    def add(self, arguments: str) -> Events:
        """Return the events of a piece of its arguments."""
        self._pieces.append(arguments)
        return []

    def end(self, status: ItemStatus) -> Events:
        """Return the events that close it."""
        return [self._done(status)]


class CallItem(OpenCallItem):
    """A call of a function."""

    def add(self, arguments: str) -> Events:
        """Return the event of a piece of its arguments."""
        self._pieces.append(arguments)
        return [
            {
                "type": "response.function_call_arguments.delta",
                "sequence_number": next(self._numbers),
                "output_index": self._index,
                "item_id": self._id,
                "delta": arguments,
            }
        ]

    def end(self, status: ItemStatus) -> Events:
        """Return the events that close the arguments, and the call."""
        return [
            {
                "type": "response.function_call_arguments.done",
                "sequence_number": next(self._numbers),
                "output_index": self._index,
                "item_id": self._id,
                "name": self._offer.name,
                "arguments": "".join(self._pieces),
            },
            self._done(status),
        ]

    def told(self, status: ItemStatus) -> OutputItem:
        """Return the call."""
        told: OutputCall = {
            "type": "function_call",
            "id": self._id,
            "status": status,
            "call_id": self._call_id,
            "name": self._offer.name,
            "arguments": "".join(self._pieces),
        }
        return told if self._offer.namespace is None else {**told, "namespace": self._offer.namespace}


class CustomCallItem(OpenCallItem):
    """A call of a custom tool, whose pieces are those of its input."""

    def __init__(self, id: str, index: int, numbers: Iterator[int], *, call_id: str, offer: Offer) -> None:
        super().__init__(id, index, numbers, call_id=call_id, offer=offer)
        self._reader = InputReader()

    def add(self, arguments: str) -> Events:
        """Return the event of a piece of its input, if the arguments go on with that."""
        text = self._reader.read(arguments)
        if not text:
            return []
        self._pieces.append(text)
        return [
            {
                "type": "response.custom_tool_call_input.delta",
                "sequence_number": next(self._numbers),
                "output_index": self._index,
                "item_id": self._id,
                "delta": text,
            }
        ]

    def end(self, status: ItemStatus) -> Events:
        """Return the events that close the input, and the call."""
        return [
            {
                "type": "response.custom_tool_call_input.done",
                "sequence_number": next(self._numbers),
                "output_index": self._index,
                "item_id": self._id,
                "input": "".join(self._pieces),
            },
            self._done(status),
        ]

    def told(self, status: ItemStatus) -> OutputItem:
        """Return the call."""
        told: OutputCustomCall = {
            "type": "custom_tool_call",
            "id": self._id,
            "status": status,
            "call_id": self._call_id,
            "name": self._offer.name,
            "input": "".join(self._pieces),
        }
        return told if self._offer.namespace is None else {**told, "namespace": self._offer.namespace}


class SearchItem(OpenCallItem):
    """A search for tools, which has no events of its own."""

    def told(self, status: ItemStatus) -> OutputSearchCall:
        """Return the search; one that isn't whole has no arguments, as a part of them is no object.

        They are sent as they were written: a schema allows numbers, and depths, that no value here can have.
        """
        arguments = "".join(self._pieces) if status == "completed" else ""
        return {
            "type": "tool_search_call",
            "id": self._id,
            "status": status,
            "call_id": self._call_id,
            "execution": "client",
            "arguments": cast(Mapping[str, Json], orjson.Fragment(arguments or "{}")),
        }


KINDS: Mapping[str, tuple[str, type[OpenCallItem]]] = {  # by those of tools; others are called as functions
    CUSTOM: ("ctc", CustomCallItem),
    SEARCH: ("tsc", SearchItem),
}


def call_item(id: str, at: int, numbers: Iterator[int], *, call_id: str, offer: Offer) -> OpenCallItem:
    """Return a call that begins; `id` is what its own is made of, `at` its place in the output."""
    prefix, kind = KINDS.get(offer.kind, ("fc", CallItem))
    return kind(f"{prefix}_{id}{at}", at, numbers, call_id=call_id, offer=offer)
