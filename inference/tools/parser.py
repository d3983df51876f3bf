"""Reads text and calls out of an answer while it is generated.

The grammar decides what is a call, and the parser decides it the same way, by the same signs. It
gives every part as soon as nothing that follows can change it: words up to what may begin a
call, a call with the first character of its arguments, its arguments as they come, but for the white space
between JSON's tokens, which models write and TGI doesn't tell. A plain answer is the concatenation of
the parts of a streamed one.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import Enum, auto

from inference.tools.arguments import Reader, notation_of
from inference.tools.formats import TOKEN, ToolFormat, text_of
from inference.tools.heads import head_pattern, written_names
from inference.tools.opening import Opening
from inference.tools.pieces import Piece, Pieces
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, TextPart, ThoughtPart, ToolUse
from inference.types import Event


class Stage(Enum):
    """Where in the answer the parser is."""

    TEXT = auto()  # before any call
    FRAME = auto()  # before the arguments of a call, or behind the last one
    ARGUMENTS = auto()


class CallParser:
    """Parses one answer: `push` its events in order, then `finish`."""

    def __init__(self, fmt: ToolFormat, use: ToolUse) -> None:
        self._opening = Opening(fmt, use)
        self._markers = {marker.id: marker.text for marker in fmt.markers if marker.id is not None}
        self._head = head_pattern(fmt)
        self._names = written_names(fmt, use.tools)
        self._stage = Stage.FRAME if self._opening.found else Stage.TEXT
        self._held = ""  # what was read of a frame and is part of nothing yet
        self._notation = notation_of(fmt)
        self._tools = {tool.name: tool for tool in use.tools}
        self._reader: Reader | None = None  # of the arguments that have begun
        self._reads_marks = fmt.tags is not None or fmt.literals is not None  # special tokens among arguments
        self._sure = (text_of(fmt.name_end or ()) or ">")[-1] if self._reads_marks else "{"
        self._calls = 0
        self._pieces = Pieces()

    thought_tokens = untold_tokens = 0  # all are text or calls

    def push(self, event: Event) -> tuple[Part, ...]:
        """Return what an event completes."""
        return joined(part for piece in self._pieces.of(event) for part in self.take(piece))

    def finish(self) -> tuple[Part, ...]:
        """Return what was held back as a possible beginning of a call; use it once, at the end."""
        return joined(self._rest())

    def take(self, piece: Piece) -> Iterator[Part]:
        """Yield what a piece completes, where somebody else makes pieces of the events."""
        return self._text(piece) if isinstance(piece, str) else self._special(piece)

    def _rest(self) -> Iterator[Part]:
        for piece in self._pieces.rest():
            yield from self.take(piece)
        if self._stage is Stage.TEXT:
            yield from shown(self._opening.rest())

    def _special(self, token_id: int) -> Iterator[Part]:
        """Take a special token: part of a call's frame, or one that means nothing here."""
        mark = self._markers.get(token_id, "")
        if self._stage is Stage.FRAME:
            yield from self._text(mark)
        elif self._stage is Stage.ARGUMENTS:
            yield from self._text(TOKEN + mark if mark and self._reads_marks else "")
        elif self._stage is Stage.TEXT:
            yield from shown(self._opening.special(token_id))
            self._look()

    def _text(self, text: str) -> Iterator[Part]:
        """Take visible text, or what stands for a token of a frame."""
        while text:
            if self._stage is Stage.TEXT:
                parts, text = self._words(text)
            elif self._stage is Stage.FRAME:
                parts, text = self._frame(text)
            else:
                parts, text = self._arguments(text)
            yield from parts

    def _words(self, text: str) -> tuple[list[Part], str]:
        """Return what is text for sure, and what follows the sign of a call."""
        words, after = self._opening.push(text)
        self._look()
        return shown(words), after

    def _look(self) -> None:
        if self._opening.found:
            self._stage = Stage.FRAME

    def _frame(self, text: str) -> tuple[list[Part], str]:
        """Return the start of a call once its arguments begin, and the text that begins with them."""
        self._held += text
        heads = self._head.finditer(self._held) if self._sure in text else ()
        found = next((head for head in heads if head["name"] in self._names), None)
        if found is None:
            return [], ""
        arguments, self._held = self._held[found.end() :], ""
        name = self._names[found["name"]]
        self._reader = self._notation.reader(self._tools[name])
        self._stage = Stage.ARGUMENTS
        return [CallStart(self._calls, name)], arguments

    def _arguments(self, text: str) -> tuple[list[Part], str]:
        """Return a piece of arguments, and the text behind them."""
        assert self._reader is not None
        arguments, text = self._reader.read(text)
        parts: list[Part] = [CallArguments(self._calls, arguments)] if arguments else []
        if self._reader.complete:
            parts.append(CallEnd(self._calls))
            self._calls += 1
            self._stage = Stage.FRAME
        return parts, text


def shown(words: str) -> list[Part]:
    """Return words as a part of the text."""
    return [TextPart(words)] if words else []


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return parts with neighbours of one kind made one."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            merged[-1] = TextPart(last.text + part.text)
        elif isinstance(part, ThoughtPart) and isinstance(last, ThoughtPart):
            merged[-1] = ThoughtPart(last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments) and last.index == part.index:
            merged[-1] = CallArguments(part.index, last.text + part.text)
        else:
            merged.append(part)
    return tuple(merged)
