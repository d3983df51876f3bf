"""Reads thoughts, text and calls out of an answer while it is generated."""

from __future__ import annotations

from collections.abc import Iterator

from inference.thoughts.types import Split, Splitter
from inference.tools.objects import JsonObject
from inference.tools.parser import CallParser, joined, shown
from inference.tools.pieces import Piece, Pieces
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, ThoughtPart
from inference.types import Event


class AnswerReader:
    """Reads one answer: `push` its events in order, then `finish`.

    What isn't thought is read by a parser of calls, or text without one.
    """

    def __init__(self, splitter: Splitter, calls: CallParser | None) -> None:
        self._splitter = splitter
        self._calls = calls
        self._pieces = Pieces()
        self._unsure = 0  # tokens that may be the first ones of a thought
        self._called = 0  # calls that the splitter told
        self._object = JsonObject()  # the arguments of the last one
        self._named = 0  # tokens of a head, of which it isn't known yet whether a thought follows
        self.thought_tokens = 0  # of what was thought, and of the marks around it
        self.untold_tokens = 0  # these, and those that say what follows them: none of them is said

    def push(self, event: Event) -> tuple[Part, ...]:
        """Return what an event completes."""
        was_unsure, was_within, was_naming = self._where()
        parts = joined(part for piece in self._pieces.of(event) for part in self._read(piece))
        self._count(1 + (self._unsure if was_unsure else 0), was_within=was_within, was_naming=was_naming)
        return parts

    def finish(self) -> tuple[Part, ...]:
        """Return what was held back; use it once, at the end."""
        return joined(self._rest())

    def _read(self, piece: Piece) -> Iterator[Part]:
        if isinstance(piece, str):
            yield from self._split(self._splitter.push(piece))
            return
        yield from self._split(self._splitter.special(piece))
        if self._calls is not None and not self._splitter.thinking:
            yield from self._calls.take(piece)

    def _split(self, split: Split) -> Iterator[Part]:
        if split.thought:
            yield ThoughtPart(split.thought)
        if split.call:
            self._object, self._called = JsonObject(), self._called + 1
            yield CallStart(self._called - 1, split.call)
        if split.arguments and not self._object.complete:
            yield from self._arguments(split.arguments)
        words = split.between + split.words
        if words:
            yield from shown(words) if self._calls is None else self._calls.take(words)

    def _arguments(self, text: str) -> Iterator[Part]:
        told, _ = self._object.read(text)
        if told:
            yield CallArguments(self._called - 1, told)
        if self._object.complete:
            yield CallEnd(self._called - 1)

    def _rest(self) -> Iterator[Part]:
        for piece in self._pieces.rest():
            yield from self._read(piece)
        yield from self._split(self._splitter.rest())
        if self._calls is not None:
            yield from self._calls.finish()

    def _where(self) -> tuple[bool, bool, bool]:
        splitter = self._splitter
        return splitter.unsure, splitter.within, splitter.naming

    def _count(self, tokens: int, *, was_within: bool, was_naming: bool) -> None:
        """Count the tokens of an event, and of those before it that were unsure, now that it is known."""
        unsure, within, naming = self._where()
        if unsure:
            self._unsure += 1
            return
        self._unsure = 0
        behind = self._splitter.thinking and not (naming or self._splitter.calling)
        if not (naming or was_naming or within or was_within or behind):
            return
        self.untold_tokens += tokens
        if naming:
            self._named += tokens
            return
        if within or was_within or behind:
            self.thought_tokens += tokens + self._named
        self._named = 0
