"""Answers that begin with thoughts, as pieces of text and special tokens, and what is read out of them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from inference.thoughts.formats import FORMATS, TagFormat, ThoughtFormat, detect
from inference.thoughts.reader import AnswerReader
from inference.thoughts.splitters import splitter_of
from inference.thoughts.types import Place
from inference.tools.formats import ToolFormat
from inference.tools.parser import CallParser, joined
from inference.tools.types import Part, TextPart, ThoughtPart, ToolUse
from inference.types import Event, Token

Piece = str | int

SPECIAL = {
    **{"<|im_start|>": 0, "[THINK]": 1, "[/THINK]": 2, "<|channel>": 3, "<channel|>": 4},
    **{"<|start|>": 10, "<|channel|>": 11, "<|message|>": 12, "<|end|>": 13, "<|return|>": 14},
    **{"[TOOL_CALLS]": 20},
}
SIGNS = {"harmony": "<|channel|>analysis<|message|>"}  # by which a template shows it
TEXT_OF = {id: text for text, id in SPECIAL.items()}


def known(name: str) -> ThoughtFormat:
    """Return a format as it is found for a model with the special tokens above."""
    (named,) = (fmt for fmt in FORMATS if fmt.name == name)
    sign = named.closing.text if isinstance(named, TagFormat) else SIGNS[name]
    found = detect([f"{{{{ x }}}}{sign}"], SPECIAL)
    assert found is not None
    assert found.name == name
    return found


def cut(text: str) -> list[Piece]:
    """Return a text with the special tokens that are spelt out in it."""
    names = "|".join(map(re.escape, SPECIAL))
    return [SPECIAL.get(piece, piece) for piece in re.split(f"({names})", text) if piece]


def letters(pieces: Iterable[Piece]) -> list[Piece]:
    """Return the same, each letter by itself."""
    return [each for piece in pieces for each in ([piece] if isinstance(piece, int) else piece)]


def events(pieces: Iterable[Piece]) -> list[Event]:
    """Return the events of tokens that are these."""
    made = []
    for at, piece in enumerate(pieces, 1):
        if isinstance(piece, int):
            made.append(Event(at, Token(piece, TEXT_OF[piece], 0.0, True), (), ""))
        else:
            made.append(Event(at, Token(99, piece, 0.0, False), (), piece))
    return made


def reader(
    fmt: ThoughtFormat,
    place: Place = Place.START,
    calls: tuple[ToolFormat, ToolUse] | None = None,
) -> AnswerReader:
    """Return what reads an answer of a format."""
    tools = None if calls is None else calls[0]
    return AnswerReader(splitter_of(fmt, place, tools), None if calls is None else CallParser(*calls))


def read(
    fmt: ThoughtFormat,
    pieces: Sequence[Piece],
    place: Place = Place.START,
    calls: tuple[ToolFormat, ToolUse] | None = None,
) -> tuple[Part, ...]:
    """Return all that an answer is read as."""
    reading = reader(fmt, place, calls)
    parts = [part for event in events(pieces) for part in reading.push(event)]
    return joined([*parts, *reading.finish()])


def said(parts: Iterable[Part]) -> tuple[str, str]:
    """Return what was thought, and what was said."""
    told = list(parts)
    thought = "".join(part.text for part in told if isinstance(part, ThoughtPart))
    return thought, "".join(part.text for part in told if isinstance(part, TextPart))
