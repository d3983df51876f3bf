"""Reads arguments in tags, in a text that comes in pieces, and makes a JSON object of them."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from enum import Enum, auto

from inference.stop import overlap
from inference.tools.formats import TOKEN, Tags, unlike_text
from inference.tools.objects import WHITE
from inference.tools.step_reader import StepReader
from inference.tools.texts import Values

NULL = "null"


class Place(Enum):
    """Where in the arguments the reader is."""

    BETWEEN = auto()  # before a tag, or the end
    NAME = auto()
    KIND = auto()  # behind a name, where it is told
    WRAP = auto()  # at the beginning of a text that may be wrapped
    TEXT = auto()
    NULL_OR_TEXT = auto()  # at the beginning of a text that may be null
    JSON = auto()


class TaggedReader(StepReader[Place]):
    """Reads the arguments of one call."""

    def __init__(self, tags: Tags, values: Values) -> None:
        super().__init__(Place.BETWEEN)
        self._before, self._middle, self._after, self._kind_end = map(
            unlike_text, (tags.before, tags.middle, tags.after, tags.kind_end)
        )
        self._kinds = tags.kinds
        self._tags = tags
        self._line = "\n" if tags.line else ""
        self._values = values
        self._text_begins = Place.TEXT if tags.wrap is None else Place.WRAP
        self._arguments = 0
        self._in_string = self._escaped = False  # of a value in JSON

    def _steps(self) -> Mapping[Place, Callable[[], str | None]]:
        return {
            Place.BETWEEN: self._between,
            Place.NAME: self._name,
            Place.KIND: self._kind,
            Place.WRAP: self._wrap,
            Place.TEXT: self._text,
            Place.NULL_OR_TEXT: self._null_or_text,
            Place.JSON: self._json,
        }

    def _between(self) -> str | None:
        """Go on to a name, or end: what isn't a tag is behind the arguments."""
        held = self._held.removeprefix(self._line)
        # The first tag may have ended the name, and come as the text that it is
        before = self._before if held.startswith(TOKEN) else self._before.removeprefix(TOKEN)
        behind = held[len(before) : len(before) + 1]
        is_tag = held.startswith(before)
        if is_tag and self._tags.named and not behind:
            return None  # the tag that closes a call may begin as one of an argument
        if is_tag and not (self._tags.named and behind == "/"):
            self._held = held[len(before) :]
            self._place = Place.NAME
            return ""
        if not is_tag and before.startswith(held):
            return None
        self._held = held
        self.complete = True
        return "}"

    def _name(self) -> str | None:
        name, found, rest = self._held.partition(self._middle)
        if not found:
            return None
        self._held = rest
        self._after = unlike_text(self._tags.ended(name))
        comma = "," if self._arguments else ""
        self._arguments += 1
        text = self._values.text(name) if self._kinds is None else None
        if self._kinds is not None:
            self._place, opened = Place.KIND, ""
        elif text is None:
            self._place, opened = Place.JSON, ""
        elif text.or_null:
            self._place, opened = Place.NULL_OR_TEXT, ""
        else:
            self._place, opened = self._text_begins, '"'
        return f"{comma}{json.dumps(name, ensure_ascii=False)}:{opened}"

    def _kind(self) -> str | None:
        kind, found, rest = self._held.partition(self._kind_end)
        if not found:
            return None
        self._held = rest
        assert self._kinds is not None
        is_text = kind == self._kinds[0]
        self._place = Place.TEXT if is_text else Place.JSON
        return '"' if is_text else ""

    def _null_or_text(self) -> str | None:
        null = NULL + self._after
        if self._held.startswith(null):
            self._held = self._held[len(null) :]
            self._place = Place.BETWEEN
            return NULL
        if null.startswith(self._held):
            return None
        self._place = self._text_begins
        return '"'

    def _wrap(self) -> str | None:
        """Find out what ends a text, which what wraps it does."""
        assert self._tags.wrap is not None
        begin, end = self._tags.wrap
        if begin.startswith(self._held) and self._held != begin:
            return None
        if self._held.startswith(begin):
            self._held, self._after = self._held[len(begin) :], end + self._after
        self._place = Place.TEXT
        return ""

    def _text(self) -> str | None:
        text, found, rest = self._held.partition(self._after)
        if found:
            self._held, self._place = rest, Place.BETWEEN
            return escaped(text) + '"'
        sure = len(text) - overlap(text, self._after)
        text, self._held = text[:sure], text[sure:]
        return escaped(text) if text else None

    def _json(self) -> str | None:
        """Read a value in JSON, without white space; what ends it may stand in its texts."""
        kept: list[str] = []
        at = 0
        while at < len(self._held):
            char = self._held[at]
            if self._in_string:
                self._in_string = self._escaped or char != '"'
                self._escaped = not self._escaped and char == "\\"
            elif self._held.startswith(self._after, at):
                self._held, self._place = self._held[at + len(self._after) :], Place.BETWEEN
                return "".join(kept)
            elif self._after.startswith(self._held[at:]):
                break
            elif char == '"':
                self._in_string = True
            if char != TOKEN and (self._in_string or char not in WHITE):
                kept.append(char)
            at += 1
        self._held = self._held[at:]
        return "".join(kept) if kept else None


def escaped(text: str) -> str:
    """Return a text as it stands within a string of JSON."""
    return json.dumps(text.replace(TOKEN, ""), ensure_ascii=False)[1:-1]
