"""OpenAI's custom tools, whose input is a text: to the model functions with one argument."""

from __future__ import annotations

import re
from functools import lru_cache

from handlers.wire.belonging import Belongs, refuse_others
from handlers.wire.types import CustomFormat, CustomFormatTold
from inference.errors import InvalidInput, Member
from inference.grammar.loosening import is_lost
from inference.grammar.patterns import pieces
from inference.grammar.regular import MOST_WRITTEN, expression
from inference.tools.types import Tool

INPUT = "input"  # the argument
SCHEMA = {"type": "object", "required": [INPUT], "additionalProperties": False}
WHOLE = "All of the input: a text as it is, which is no JSON."
TEXT, GRAMMAR = "text", "grammar"
LARK = "lark"
BELONGS: Belongs = {TEXT: (), GRAMMAR: ("syntax", "definition")}
ANCHORS = re.compile(r"\A\^|(?<!\\)((?:\\\\)*)\$\Z")  # at the ends, where they change nothing
ESCAPED = re.compile(r"\\.", re.DOTALL)
BEGINNING = re.compile(r'\s*\{\s*"input"\s*:\s*"')
PLAIN = re.compile(r'[^"\\]+')
ESCAPES = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t"}
UNKNOWN = "\ufffd"  # half a surrogate pair


def custom_tool(
    name: str, description: str | None, given: CustomFormat | None, where: str, format_at: str = "format"
) -> tuple[Tool, bool]:
    """Return a custom tool as a function, and whether its input is held to its format.

    It isn't where no regular expression says what the format does, as within JSON it would have to. Raises
    InvalidInput for a format that lacks something, by its place `format_at` in the tool.
    """
    format_where = f"{where}.{format_at}"
    told = told_format(given, format_where)
    shown, pattern = WHOLE, None
    if told["type"] == "grammar":
        definition, is_lark = told["definition"], told["syntax"] == LARK
        shown += f" It follows this {'grammar of Lark' if is_lark else 'regular expression'}:\n{definition}"
        pattern = expression(definition) if is_lark else _plain(definition, f"{format_where}.definition")
    argument = {"type": "string", "description": shown}
    is_held = pattern is not None and _is_held(pattern)
    held = {**argument, "pattern": f"^(?:{pattern})$"} if is_held else argument
    tool = Tool(
        name=name,
        description=description,
        parameters={**SCHEMA, "properties": {INPUT: held}},
        told={**SCHEMA, "properties": {INPUT: argument}},
        takes_text=True,
        at=where,
        schema=f"{format_at}.definition",
    )
    return tool, is_held or told["type"] == TEXT


@lru_cache(maxsize=128)
def _is_held(pattern: str) -> bool:
    """Return whether a grammar can hold a text to an expression, which takes some milliseconds to say."""
    return not is_lost(pattern)


def _plain(definition: str, where: str) -> str:
    """Return an expression without the anchors at its ends; raise InvalidInput for one that isn't whole."""
    if len(definition) > MOST_WRITTEN:
        raise InvalidInput(
            Member(where), f" must have <= {MOST_WRITTEN} characters. Given: {len(definition)}. Shorten it"
        )
    depth = 0
    for piece in pieces(definition, ""):
        for sign in ESCAPED.sub("", piece) if isinstance(piece, str) else "":
            depth += (sign == "(") - (sign == ")")
            if depth < 0:
                raise InvalidInput(
                    Member(where), " closes a group that it doesn't open: write `\\)` for the sign"
                )
    return ANCHORS.sub(r"\1", definition)


def told_format(given: CustomFormat | None, where: str) -> CustomFormatTold:
    """Return a format as it is understood, and echoed; raise InvalidInput for one that lacks something."""
    if given is None:
        return {"type": "text"}
    refuse_others(given, BELONGS, given["type"], where)
    if given["type"] == TEXT:
        return {"type": "text"}
    syntax, definition = given.get("syntax"), given.get("definition")
    if syntax is None or not definition:
        missing = "syntax" if syntax is None else "definition"
        raise InvalidInput(Member(where), f" is of type {GRAMMAR!r} and has no `{missing}`: add it")
    return {"type": "grammar", "syntax": syntax, "definition": definition}


class InputReader:
    """Reads the input of a custom tool in the arguments that a model writes, as they come in pieces."""

    def __init__(self) -> None:
        self._held = ""  # what says nothing yet: a part of the beginning, or of an escape
        self._begun = False

    def read(self, piece: str) -> str:
        """Return what a piece of the arguments adds."""
        self._held += piece
        if not self._begun:
            found = BEGINNING.match(self._held)
            if found is None:
                return ""
            self._begun, self._held = True, self._held[found.end() :]
        text, self._held = _unescaped(self._held)
        return text


def _unescaped(written: str) -> tuple[str, str]:
    """Return what a part of a JSON string says, and what of it is to be read with what follows."""
    told: list[str] = []
    place = 0
    while place < len(written):
        plain = PLAIN.match(written, place)
        if plain is not None:
            told.append(plain.group())
            place = plain.end()
            continue
        size = _escape(written, place)
        if not size:
            break
        told.append(_character(written[place : place + size]))
        place += size
    return "".join(told), written[place:]


def _escape(written: str, place: int) -> int:
    """Return the length of the escape at a place; 0 where it isn't whole, or the string ends."""
    rest = written[place : place + 12]
    if rest[0] == '"' or len(rest) < 2:
        return 0
    if rest[1] != "u":
        return 2
    if not _is_half(rest[2:6], 0xD800):
        return 6 if len(rest) >= 6 else 0
    if len(rest) < 12 and rest[6:8] in ("", "\\", "\\u"):
        return 0
    return 12 if rest[6:8] == "\\u" and _is_half(rest[8:12], 0xDC00) else 6


def _is_half(digits: str, first: int) -> bool:
    return len(digits) == 4 and first <= int(digits, 16) < first + 0x400


def _character(escape: str) -> str:
    if escape[1] != "u":
        return ESCAPES.get(escape[1], escape[1])
    if len(escape) == 12:
        return bytes.fromhex(escape[2:6] + escape[8:12]).decode("utf-16-be")
    code = int(escape[2:6], 16)
    return UNKNOWN if 0xD800 <= code < 0xE000 else chr(code)
