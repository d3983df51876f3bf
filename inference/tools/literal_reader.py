"""Reads arguments that are literals, in a text that comes in pieces, and makes a JSON object of them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from enum import Enum, auto

from inference.stop import overlap
from inference.tools.formats import TOKEN, Literals, unlike_text
from inference.tools.objects import WHITE
from inference.tools.step_reader import StepReader

WORDS = {"True": "true", "False": "false", "None": "null"}
NUMBER = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
CLOSING = {"{": "}", "[": "]"}
ESCAPE = re.compile(
    r"\\(u[0-9a-fA-F]{4}|U00(?:0[0-9a-fA-F]|10)[0-9a-fA-F]{4}|x[0-9a-fA-F]{2}|[^uUx])", re.DOTALL
)
WORD_END = re.compile(r"[,)\]}\s]")
BEGUN_ESCAPE = re.compile(r"\\(u[0-9a-fA-F]{0,3}|U[0-9a-fA-F]{0,7}|x[0-9a-fA-F]?)?")
OTHERS = {"a": "\a", "v": "\v", "0": "\0", "'": "'", "/": "/"}  # escapes that JSON doesn't have, or need


class Place(Enum):
    """Where in the arguments the reader is."""

    KEY = auto()  # before a name, or the end
    SETTER = auto()  # behind a quoted name
    VALUE = auto()
    BEHIND = auto()  # a value, before a comma or the end
    TEXT = auto()  # within a text as it is
    QUOTED = auto()  # within a text with escapes
    WORD = auto()  # within a number or a word


class LiteralReader(StepReader[Place]):
    """Reads the arguments of one call."""

    def __init__(self, literals: Literals) -> None:
        super().__init__(Place.KEY)
        self._setter = literals.setter
        self._quote = "" if literals.quote is None else unlike_text((literals.quote,))
        self._closing: list[str] = []  # of the values around, the innermost last
        self._is_empty = True  # nothing stands in the innermost, or in the call
        self._delimiter = ""  # of the text that is read
        self._is_key = False
        self._word: list[str] = []  # pieces of the one that is read: none of them is looked through twice

    def _steps(self) -> Mapping[Place, Callable[[], str | None]]:
        return {
            Place.KEY: self._key,
            Place.SETTER: self._behind_key,
            Place.VALUE: self._value,
            Place.BEHIND: self._behind,
            Place.TEXT: self._text,
            Place.QUOTED: self._quoted,
            Place.WORD: self._read_word,
        }

    def _key(self) -> str | None:
        self._held = self._held.lstrip(WHITE)
        if not self._held:
            return None
        if self._held[0] in ")}]":
            return self._close()
        comma = "" if self._is_empty else ","
        if self._held[0] in "\"'":
            self._is_empty, self._is_key = False, True
            return comma + self._open_quoted()
        setter = ":" if self._closing else self._setter
        name, found, rest = self._held.partition(setter)
        if not found:
            return None
        self._held, self._place, self._is_empty = rest, Place.VALUE, False
        return f"{comma}{_string(name.strip(WHITE))}:"

    def _behind_key(self) -> str | None:
        self._held = self._held.lstrip(WHITE)
        if not self._held:
            return None
        self._held, self._place = self._held.removeprefix(":").removeprefix("="), Place.VALUE
        return ":"

    def _close(self) -> str:
        """Close the innermost value, or the arguments, whose end is left to the frame."""
        if not self._closing:
            self.complete = True
            return "}"
        self._held, self._place, self._is_empty = self._held[1:], Place.BEHIND, False
        return self._closing.pop()

    def _value(self) -> str | None:
        self._held = self._held.lstrip(WHITE)
        if not self._held or (self._quote.startswith(self._held) and self._held != self._quote):
            return None
        first = self._held[0]
        comma = self._comma()
        if self._quote and self._held.startswith(self._quote):
            self._held, self._place, self._delimiter = self._held[len(self._quote) :], Place.TEXT, self._quote
            return f'{comma}"'
        if first in "\"'":
            return comma + self._open_quoted()
        if first in CLOSING:
            self._closing.append(CLOSING[first])
            self._held, self._is_empty = self._held[1:], True
            self._place = Place.KEY if first == "{" else Place.VALUE
            return comma + first
        if first == "]" and self._closing[-1:] == ["]"]:
            return self._close()
        self._place = Place.WORD
        return comma

    def _comma(self) -> str:
        """Return what stands before a value: a comma if it is a further one of a list."""
        in_list = self._closing[-1:] == ["]"]
        return "," if in_list and not self._is_empty else ""

    def _read_word(self) -> str | None:
        """Read a number or a word, once it has ended; what is neither is a text."""
        found = WORD_END.search(self._held)
        end = len(self._held) if found is None else found.start()
        self._word.append(self._held[:end])
        self._held = self._held[end:]
        if found is None:
            return None
        word = "".join(self._word).replace(TOKEN, "")
        self._word, self._place, self._is_empty = [], Place.BEHIND, False
        return word if word in WORDS.values() or NUMBER.fullmatch(word) else WORDS.get(word, _string(word))

    def _behind(self) -> str | None:
        """Go on behind a value: what is no comma closes what is around."""
        self._held = self._held.lstrip(WHITE)
        if not self._held:
            return None
        if self._held[0] in ")}]":
            return self._close()
        if self._held[0] == ",":
            self._held = self._held[1:]
        self._place = Place.VALUE if self._closing[-1:] == ["]"] else Place.KEY
        return ""

    def _text(self) -> str | None:
        text, found, rest = self._held.partition(self._delimiter)
        if found:
            self._held, self._place, self._is_empty = rest, Place.BEHIND, False
            return _escaped(text) + '"'
        sure = len(text) - overlap(text, self._delimiter)
        text, self._held = text[:sure], text[sure:]
        return _escaped(text) if text else None

    def _open_quoted(self) -> str:
        self._delimiter, self._held = self._held[0], self._held[1:]
        self._place = Place.QUOTED
        return '"'

    def _quoted(self) -> str | None:
        """Read of a text what is whole: a character, or one that is escaped."""
        kept: list[str] = []
        at = 0
        while at < len(self._held):
            char = self._held[at]
            if char == self._delimiter:
                self._held = self._held[at + 1 :]
                return "".join(kept) + self._end_quoted()
            if char != "\\":
                kept.append(_escaped(char))
                at += 1
                continue
            if BEGUN_ESCAPE.fullmatch(self._held, at):
                break
            escape = ESCAPE.match(self._held, at)
            kept.append("\\\\" if escape is None else _unescaped(escape[1]))
            at = at + 1 if escape is None else escape.end()
        self._held = self._held[at:]
        return "".join(kept) if kept else None

    def _end_quoted(self) -> str:
        if not self._is_key:
            self._place, self._is_empty = Place.BEHIND, False
            return '"'
        self._is_key, self._place = False, Place.SETTER
        return '"'


def _string(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    """Return a text as it stands within a string of JSON."""
    return json.dumps(text.replace(TOKEN, ""), ensure_ascii=False)[1:-1]


def _unescaped(escape: str) -> str:
    """Return what JSON has for what stands behind a backslash of Python."""
    if escape[0] == "u" or escape in '"\\bfnrt':
        return f"\\{escape}"
    if len(escape) > 1:
        return _escaped(chr(int(escape[1:], 16)))
    if escape == "\n":
        return ""  # the line goes on
    return _escaped(OTHERS.get(escape, f"\\{escape}"))
