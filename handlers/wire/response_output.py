"""A response's output: its items, with their ids."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import MappingProxyType

from handlers.wire.calls import Parser
from handlers.wire.offers import FUNCTION, Offer
from handlers.wire.output_calls import OpenCallItem, call_item
from handlers.wire.output_items import TextItem
from handlers.wire.output_reasoning import ReasoningItem
from handlers.wire.parts import Parts, Tell
from handlers.wire.types import OutputItem, ResponseEvent
from inference.tools.types import Tool

NO_OFFERS: Mapping[str, Offer] = MappingProxyType({})


class Items:
    """Makes the items of one answer."""

    def __init__(self, id: str, numbers: Iterator[int], offers: Mapping[str, Offer] = NO_OFFERS) -> None:
        """`id` is what the items' ids are made of; `numbers` counts the events of the whole stream.

        `offers` are the tools, by the names by which the model calls them.
        """
        self._id = id
        self._numbers = numbers
        self._offers = offers

    def text(self, at: int) -> TextItem:
        """Return a message that begins."""
        return TextItem(f"msg_{self._id}{at}", at, self._numbers)

    def thought(self, at: int) -> ReasoningItem:
        """Return what was thought, which begins."""
        return ReasoningItem(f"rs_{self._id}{at}", at, self._numbers)

    def call(self, at: int, id: str, name: str) -> OpenCallItem:
        """Return a call that begins."""
        offer = self._offers.get(name) or Offer(FUNCTION, name, None, Tool(name=name), "tools")
        return call_item(self._id, at, self._numbers, call_id=id, offer=offer)


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
        offers: Mapping[str, Offer] = NO_OFFERS,
    ) -> None:
        """`id`, `numbers` and `offers` as `Items` takes them, the rest as `Parts` does."""
        super().__init__(
            Items(id, numbers, offers),
            parser=parser,
            call_ids=call_ids,
            tell=tell,
            shows_thoughts=shows_thoughts,
        )
