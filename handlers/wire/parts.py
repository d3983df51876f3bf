"""The parts of an answer whose events have names, as they come; the same whole and streamed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from handlers.wire.calls import Parser
from handlers.wire.types import ChatCompletionLogprob, ItemStatus
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, TextPart, ThoughtPart
from inference.types import Event, Finish, FinishReason

Logprobs = Sequence[ChatCompletionLogprob]
Tell = Callable[[Sequence[Event]], Logprobs]  # the log-probabilities of events

Happening = TypeVar("Happening")  # an event of the stream
Told = TypeVar("Told")  # a part of the whole answer
Happening_co = TypeVar("Happening_co", covariant=True)
Told_co = TypeVar("Told_co", covariant=True)


class Open(Protocol[Happening_co, Told_co]):
    """A part that goes on."""

    def begin(self) -> Sequence[Happening_co]:
        """Return the events that announce it."""

    def end(self, status: ItemStatus) -> Sequence[Happening_co]:
        """Return the events that close it."""

    def told(self, status: ItemStatus) -> Told_co:
        """Return it, as far as it has come."""


class OpenText(Open[Happening_co, Told_co], Protocol[Happening_co, Told_co]):
    """A text that goes on."""

    def add(self, text: str, logprobs: Logprobs) -> Sequence[Happening_co]:
        """Return the events of a piece of it."""


class OpenThought(Open[Happening_co, Told_co], Protocol[Happening_co, Told_co]):
    """A thought that goes on."""

    def add(self, text: str) -> Sequence[Happening_co]:
        """Return the events of a piece of it."""


class OpenCall(Open[Happening_co, Told_co], Protocol[Happening_co, Told_co]):
    """A call that goes on."""

    def add(self, arguments: str) -> Sequence[Happening_co]:
        """Return the events of a piece of its arguments."""


class Kinds(Protocol[Happening_co, Told_co]):
    """Makes the parts of one dialect; `at` is a part's place in the answer."""

    def text(self, at: int) -> OpenText[Happening_co, Told_co]:
        """Return a text that begins."""

    def thought(self, at: int) -> OpenThought[Happening_co, Told_co]:
        """Return a thought that begins."""

    def call(self, at: int, id: str, name: str) -> OpenCall[Happening_co, Told_co]:
        """Return a call that begins."""


class Parts(Generic[Happening, Told]):
    """The parts of one answer, one open at a time: what was thought, a text, and then calls, as there are."""

    def __init__(
        self,
        kinds: Kinds[Happening, Told],
        *,
        parser: Parser | None = None,
        call_ids: Iterator[str] | None = None,
        tell: Tell | None = None,
        shows_thoughts: bool = False,
    ) -> None:
        """Without a `parser` all is text; with one, its calls have the `call_ids`.

        Without `tell`, no log-probabilities are told; what the parser says was thought, only if it
        `shows_thoughts`.
        """
        self._kinds = kinds
        self._parser = parser
        self._call_ids = call_ids
        self._tell = tell
        self._shows_thoughts = shows_thoughts
        self._untold: list[Event] = []  # whose log-probabilities the next piece of text has
        self._done: list[Told] = []
        self._thought: OpenThought[Happening, Told] | None = None
        self._text: OpenText[Happening, Told] | None = None
        self._call: OpenCall[Happening, Told] | None = None
        self.called = False  # there are calls, and the last one wasn't cut

    @property
    def _open(self) -> Open[Happening, Told] | None:
        return self._thought or self._text or self._call

    @property
    def thought_tokens(self) -> int:
        """Return how many tokens were thought so far, where that is told apart."""
        return 0 if self._parser is None else self._parser.thought_tokens

    @property
    def _untold_tokens(self) -> int:
        return 0 if self._parser is None else self._parser.untold_tokens

    def push(self, event: Event) -> list[Happening]:
        """Return what an event brings about."""
        known, parts = self._untold_tokens, list(self._parts(event))
        if self._tell is not None:
            self._untold.append(event)
            del self._untold[len(self._untold) - (self._untold_tokens - known) :]
        told = [each for part in parts for each in self._part(part)]
        if event.finish is not None:
            told += self._end(event.finish)
        return told

    def items(self) -> list[Told]:
        """Return all parts; one that is open has been cut."""
        return self._done if self._open is None else [*self._done, self._open.told("incomplete")]

    def _parts(self, event: Event) -> Iterator[Part]:
        if self._parser is not None:
            yield from self._parser.push(event)
            if event.finish is not None:
                yield from self._parser.finish()
        elif event.delta:
            yield TextPart(event.delta)

    def _part(self, part: Part) -> Sequence[Happening]:
        if isinstance(part, TextPart):
            return self._words(part.text)
        if isinstance(part, ThoughtPart):
            return self._think(part.text) if self._shows_thoughts else []
        if isinstance(part, CallStart):
            return self._begin_call(part.name)
        if isinstance(part, CallEnd):
            return self._close(cut=False)
        return self._arguments(part)

    def _words(self, text: str) -> Sequence[Happening]:
        if self._text is not None:
            return self._text.add(text, self._logprobs())
        before = self._close(cut=False)
        text = text.lstrip("\n") if self._done else text  # what stands between texts that are put together
        self._text = self._kinds.text(len(self._done))
        begun = [*before, *self._text.begin()]
        return [*begun, *(self._text.add(text, self._logprobs()) if text or self._untold else ())]

    def _think(self, text: str) -> Sequence[Happening]:
        if self._thought is not None:
            return self._thought.add(text)
        before = self._close(cut=False)
        self._thought = self._kinds.thought(len(self._done))
        return [*before, *self._thought.begin(), *self._thought.add(text.lstrip("\n"))]

    def _begin_call(self, name: str) -> Sequence[Happening]:
        assert self._call_ids is not None, "where there is a parser, there are ids for calls"
        before = self._close(cut=False)
        self._call = self._kinds.call(len(self._done), next(self._call_ids), name)
        return [*before, *self._call.begin()]

    def _arguments(self, part: CallArguments) -> Sequence[Happening]:
        assert self._call is not None, "arguments follow the start of their call"
        return self._call.add(part.text)

    def _close(self, *, cut: bool) -> Sequence[Happening]:
        part = self._open
        if part is None:
            return []
        self.called = not cut if self._call is not None else self.called
        self._thought = self._text = self._call = None
        status: ItemStatus = "incomplete" if cut else "completed"
        self._done.append(part.told(status))
        return part.end(status)

    def _end(self, finish: Finish) -> list[Happening]:
        """Return what closes the answer, which has a part at least."""
        told: list[Happening] = []
        if self._open is None and not self._done:
            told += self._words("")
        elif self._text is not None and self._untold:
            told += self._text.add("", self._logprobs())
        cut = finish.reason_before_stop is FinishReason.LENGTH or self._call is not None
        return [*told, *self._close(cut=cut)]

    def _logprobs(self) -> Logprobs:
        events, self._untold = self._untold, []
        return () if self._tell is None else self._tell(events)
