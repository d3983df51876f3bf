"""A response's output, made of the engine's events; the same whole and streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from handlers.wire.calls import Parser
from handlers.wire.output_items import CallItem, Events, Item, Logprobs, TextItem
from handlers.wire.output_reasoning import ReasoningItem
from handlers.wire.types import ItemStatus, OutputItem
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, TextPart, ThoughtPart
from inference.types import Event, Finish, FinishReason

Tell = Callable[[Sequence[Event]], Logprobs]  # the log-probabilities of events


class Output:
    """The items of one answer, one open at a time: what was thought, a text, and then calls, as there are."""

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
        """`id` is what the items' ids are made of.

        Without a `parser` all is text; with one, its calls have the `call_ids`. Without `tell`, no
        log-probabilities are told. Thoughts that the parser tells apart are dropped unless `shows_thoughts`.
        """
        self._shows_thoughts = shows_thoughts
        self._id = id
        self._numbers = numbers
        self._parser = parser
        self._call_ids = call_ids
        self._tell = tell
        self._untold: list[Event] = []  # whose log-probabilities the next piece of text has
        self._done: list[OutputItem] = []
        self._open: Item | None = None

    def push(self, event: Event) -> Events:
        """Return what an event brings about."""
        known = self.thought_tokens
        parts = list(self._parts(event))
        if self._tell is not None:
            self._untold.append(event)
            del self._untold[len(self._untold) - (self.thought_tokens - known) :]
        told = [each for part in parts for each in self._part(part)]
        if event.finish is not None:
            told += self._end(event.finish)
        return told

    @property
    def thought_tokens(self) -> int:
        """Return how many tokens were thought so far, where that is told apart."""
        return 0 if self._parser is None else self._parser.thought_tokens

    def items(self) -> list[OutputItem]:
        """Return all items; one that is open has been cut."""
        return self._done if self._open is None else [*self._done, self._open.told("incomplete")]

    def _parts(self, event: Event) -> Iterator[Part]:
        if self._parser is not None:
            yield from self._parser.push(event)
            if event.finish is not None:
                yield from self._parser.finish()
        elif event.delta:
            yield TextPart(event.delta)

    def _part(self, part: Part) -> Events:
        if isinstance(part, TextPart):
            return self._words(part.text)
        if isinstance(part, ThoughtPart):
            return self._thought(part.text) if self._shows_thoughts else []
        if isinstance(part, CallStart):
            return [*self._close(cut=False), *self._begin(self._call(part.name))]
        if isinstance(part, CallEnd):
            return self._close(cut=False)
        return self._arguments(part)

    def _words(self, text: str) -> Events:
        if isinstance(self._open, TextItem):
            return self._open.add(text, self._logprobs())
        item = TextItem(f"msg_{self._id}{len(self._done)}", len(self._done), self._numbers)
        begun = [*self._close(cut=False), *self._begin(item)]
        return [*begun, *(item.add(text, self._logprobs()) if text or self._untold else ())]

    def _thought(self, text: str) -> Events:
        if isinstance(self._open, ReasoningItem):
            return self._open.add(text)
        item = ReasoningItem(f"rs_{self._id}{len(self._done)}", len(self._done), self._numbers)
        return [*self._close(cut=False), *self._begin(item), *item.add(text)]

    def _arguments(self, part: CallArguments) -> Events:
        assert isinstance(self._open, CallItem), "arguments follow the start of their call"
        return self._open.add(part.text)

    def _call(self, name: str) -> CallItem:
        assert self._call_ids is not None, "where there is a parser, there are ids for calls"
        at = len(self._done) + (self._open is not None)
        return CallItem(f"fc_{self._id}{at}", at, self._numbers, call_id=next(self._call_ids), name=name)

    def _begin(self, item: Item) -> Events:
        self._open = item
        return item.begin()

    def _close(self, *, cut: bool) -> Events:
        item, self._open = self._open, None
        if item is None:
            return []
        status: ItemStatus = "incomplete" if cut else "completed"
        self._done.append(item.told(status))
        return item.end(status)

    def _end(self, finish: Finish) -> Events:
        """Return what closes the output, which has an item at least."""
        told: Events = []
        if self._open is None and not self._done:
            told += self._words("")
        elif isinstance(self._open, TextItem) and self._untold:
            told += self._open.add("", self._logprobs())
        cut = finish.reason_before_stop is FinishReason.LENGTH or isinstance(self._open, CallItem)
        return told + self._close(cut=cut)

    def _logprobs(self) -> Logprobs:
        events, self._untold = self._untold, []
        return () if self._tell is None else self._tell(events)
