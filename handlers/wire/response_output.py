"""A response's output: its items, with their ids."""

from __future__ import annotations

from collections.abc import Iterator

from handlers.wire.calls import Parser
from handlers.wire.output_items import CallItem, TextItem
from handlers.wire.output_reasoning import ReasoningItem
from handlers.wire.parts import Parts, Tell
from handlers.wire.types import OutputItem, ResponseEvent


class Items:
    """Makes the items of one answer."""

    def __init__(self, id: str, numbers: Iterator[int]) -> None:
        """`id` is what the items' ids are made of; `numbers` counts the events of the whole stream."""
        self._id = id
        self._numbers = numbers

    def text(self, at: int) -> TextItem:
        """Return a message that begins."""
        return TextItem(f"msg_{self._id}{at}", at, self._numbers)

    def thought(self, at: int) -> ReasoningItem:
        """Return what was thought, which begins."""
        return ReasoningItem(f"rs_{self._id}{at}", at, self._numbers)

    def call(self, at: int, id: str, name: str) -> CallItem:
        """Return a call that begins."""
        return CallItem(f"fc_{self._id}{at}", at, self._numbers, call_id=id, name=name)


class Output(Parts[ResponseEvent, OutputItem]):
    """The items of one answer, one open at a time: what was thought, a message, and calls."""

    def __init__(
        self,
        id: str,
        numbers: Iterator[int],
        *,
        parser: Parser | None = None,
        call_ids: Iterator[str] | None = None,
        tell: Tell | None = None,
        shows_thoughts: bool = False,
    ) -> None:
        """`id` and `numbers` as `Items` takes them, the rest as `Parts` does."""
        super().__init__(
            Items(id, numbers), parser=parser, call_ids=call_ids, tell=tell, shows_thoughts=shows_thoughts
        )
