"""Reads text and calls out of an answer while it is generated.

The grammar decides what is a call, and the parser decides it the same way, by the same signs. It
gives every part as soon as nothing that follows can change it: words up to what may begin a
call, a call with the first character of its arguments, its arguments as they come, but for the white space
between JSON's tokens, which models write and TGI doesn't tell. A plain answer is the concatenation of
the parts of a streamed one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from enum import Enum, auto

from inference.text.stop import overlap
from inference.tools.formats import Marker, ToolFormat
from inference.tools.heads import WHITE, Beginning, head_pattern, written_names
from inference.tools.types import CallArguments, CallEnd, CallStart, Part, TextPart, ToolUse
from inference.types import Event


class Stage(Enum):
    """Where in the answer the parser is."""

    BEGINNING = auto()  # of an answer that is a call if it begins like one
    TEXT = auto()
    FRAME = auto()  # before the arguments of a call, or behind the last one
    ARGUMENTS = auto()


class CallParser:
    """Parses one answer: `push` its events in order, then `finish`."""

    def __init__(self, fmt: ToolFormat, use: ToolUse) -> None:
        self._sign = fmt.opening[0] if fmt.opening else None
        self._formed = use.formed
        self._markers = {marker.id: marker.text for marker in fmt.markers if marker.id is not None}
        self._head = head_pattern(fmt, use.tools)
        self._names = written_names(fmt, use.tools)
        self._beginning = Beginning(use.tools)
        self._stage = Stage.FRAME if use.required else Stage.BEGINNING if fmt.bare else Stage.TEXT
        self._white: list[str] = []  # white space that is shown if text follows, and not before a call
        self._held = ""  # what else was read and is part of nothing yet
        self._object = JsonObject()
        self._calls = 0
        self._generated = 0  # characters of text that the tokens stand for
        self._released = 0  # of these read: fewer where the last ones may begin a stop sequence
        self._specials: deque[tuple[int, int]] = deque()  # (place, id) of special tokens behind text to come

    def push(self, event: Event) -> tuple[Part, ...]:
        """Return what an event completes."""
        return joined(self._read(event))

    def finish(self) -> tuple[Part, ...]:
        """Return what was held back as a possible beginning of a call; use it once, at the end."""
        return joined(self._rest())

    def _read(self, event: Event) -> Iterator[Part]:
        text = event.delta
        while self._specials and self._specials[0][0] <= self._released + len(text):
            place, token_id = self._specials.popleft()
            size = place - self._released
            yield from self._text(text[:size])
            yield from self._special(token_id)
            text, self._released = text[size:], place
        yield from self._text(text)
        self._released += len(text)
        if not event.token.special:
            self._generated += len(event.token.text)
        elif self._released < self._generated:
            self._specials.append((self._generated, event.token.id))
        else:
            yield from self._special(event.token.id)

    def _rest(self) -> Iterator[Part]:
        while self._specials:
            yield from self._special(self._specials.popleft()[1])
        if self._stage in (Stage.BEGINNING, Stage.TEXT):
            shown = "".join((*self._white, self._held))
            if shown:
                yield TextPart(shown)

    def _special(self, token_id: int) -> Iterator[Part]:
        """Take a special token: part of a call's frame, or one that means nothing here."""
        if self._stage is Stage.FRAME:
            yield from self._text(self._markers.get(token_id, ""))
        elif self._stage is not Stage.ARGUMENTS:
            held, self._held = self._held, ""
            if self._sign is not None and token_id == self._sign.id:
                yield from self._show(held.rstrip())
                self._stage = Stage.FRAME
            else:  # what began before it doesn't go on behind it
                yield from self._show(held)
                self._stage = Stage.TEXT

    def _text(self, text: str) -> Iterator[Part]:
        """Take visible text, or what stands for a token of a frame."""
        while text:
            parts: list[Part] = []
            if self._stage is Stage.BEGINNING:
                text = self._begin(text)
            elif self._stage is Stage.TEXT:
                parts, text = self._words(text)
            elif self._stage is Stage.FRAME:
                parts, text = self._frame(text)
            else:
                parts, text = self._arguments(text)
            yield from parts

    def _begin(self, text: str) -> str:
        """Find out whether the answer is a call; return the text to go on with."""
        self._held += text
        is_call = self._beginning.push(text)
        if is_call is None:
            return ""
        self._stage = Stage.FRAME if is_call else Stage.TEXT
        text, self._held = self._held, ""
        return text

    def _words(self, text: str) -> tuple[list[Part], str]:
        """Return what is text for sure, and what follows the sign of a call."""
        text, self._held = self._held + text, ""
        if self._formed and self._sign is not None and not begins_alike(text, self._sign):
            self._sign = None  # where it stands in a text of a form, it is part of that
        if self._sign is None:
            return self._show(text), ""
        if self._sign.id is None:
            before, sign, after = text.partition(self._sign.text)
            if sign:
                self._stage = Stage.FRAME
                return self._show(before.rstrip()), after
            keep = len(text) - overlap(text, self._sign.text)
            text, self._held = text[:keep], text[keep:]
        words = text.rstrip()
        parts = self._show(words)
        self._white.append(text[len(words) :])
        return parts, ""

    def _frame(self, text: str) -> tuple[list[Part], str]:
        """Return the start of a call once its arguments begin, and the text that begins with them."""
        self._held += text
        found = self._head.search(self._held) if "{" in text else None
        if found is None:
            return [], ""
        arguments, self._held = self._held[found.end() :], ""
        self._object = JsonObject()
        self._stage = Stage.ARGUMENTS
        return [CallStart(self._calls, self._names[found["name"]])], arguments

    def _arguments(self, text: str) -> tuple[list[Part], str]:
        """Return a piece of arguments, and the text behind them."""
        arguments, text = self._object.read(text)
        parts: list[Part] = [CallArguments(self._calls, arguments)] if arguments else []
        if self._object.complete:
            parts.append(CallEnd(self._calls))
            self._calls += 1
            self._stage = Stage.FRAME
        return parts, text

    def _show(self, words: str) -> list[Part]:
        """Return words as a part of the text, with the white space that was held back before them."""
        if not words:
            return []
        shown = "".join((*self._white, words))
        self._white.clear()
        return [TextPart(shown)]


def begins_alike(text: str, sign: Marker) -> bool:
    """Return whether a text begins with a sign, or may do so once it goes on; a special token isn't text."""
    begun = text.lstrip(" ") if sign.spaced else text
    return sign.id is not None or begun.startswith(sign.text) or sign.text.startswith(begun)


class JsonObject:
    """Reads a JSON object in a text that comes in pieces, without the white space between its tokens."""

    def __init__(self) -> None:
        self._depth = 0
        self._in_string = False
        self._escaped = False
        self.complete = False

    def read(self, text: str) -> tuple[str, str]:
        """Return what a piece adds to the object, all else spelt as it is, and what follows the object."""
        kept: list[str] = []
        for at, char in enumerate(text):
            if self._in_string:
                self._read_string(char)
            elif char in WHITE:
                continue
            elif char == '"':
                self._in_string = True
            elif char == "{":
                self._depth += 1
            elif char == "}":
                self._depth -= 1
                self.complete = not self._depth
            kept.append(char)
            if self.complete:
                return "".join(kept), text[at + 1 :]
        return "".join(kept), ""

    def _read_string(self, char: str) -> None:
        if self._escaped:
            self._escaped = False
        elif char == "\\":
            self._escaped = True
        elif char == '"':
            self._in_string = False


def joined(parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return parts with neighbours of one kind made one."""
    merged: list[Part] = []
    for part in parts:
        last = merged[-1] if merged else None
        if isinstance(part, TextPart) and isinstance(last, TextPart):
            merged[-1] = TextPart(last.text + part.text)
        elif isinstance(part, CallArguments) and isinstance(last, CallArguments) and last.index == part.index:
            merged[-1] = CallArguments(part.index, last.text + part.text)
        else:
            merged.append(part)
    return tuple(merged)
