"""Regular expressions in schemas: what llguidance gets wrong when it writes them as JSON strings.

A class of characters that has all control characters, and not the quotation mark or not the
backslash, lets it write these by their escapes all the same: `^[^"]$` then accepts "\\"". Without
NUL in the class it doesn't. JSON holds NUL as an escape only, so that nobody misses it.
"""

from __future__ import annotations

import re

from inference.grammar.fault import GrammarFault

NULL, ONE = r"\x00", r"\x01"
# Classes that have control characters, and lack others, by their names
BY_NAME = re.compile(r"\\P|\[:\^?[a-z]+:\]|\\p(?:\{(?P<long>[^}]*)\}|(?P<short>.))")
CONTROLS = frozenset({"c", "cc", "cntrl", "control", "other"})
# From NUL on: by its number, as an escape of its own or as it is
FROM_NULL = re.compile(r"(?:\\x00|\\u0000|\\u\{0+\}|\\x\{0+\}|\\0|\\c@|\x00)-")


def without_null(pattern: str, at: str) -> str:
    """Return an expression whose classes of characters leave NUL out; raise GrammarFault where they can't."""
    pieces: list[str] = []
    place = 0
    while place < len(pattern):
        end = class_end(pattern, place) if pattern[place] == "[" else place + 1 + (pattern[place] == "\\")
        piece = pattern[place:end]
        if piece.startswith("[^") and len(piece) > 3:
            body = piece[2:]
            piece = f"[^{NULL}" + (rf"\{body}" if body.startswith("-") else body)
        elif piece.startswith("["):
            piece = FROM_NULL.sub(lambda _: rf"{ONE}-", piece)
        pieces.append(piece)
        place = end
    for named in BY_NAME.finditer(pattern):
        if has_controls(named):
            raise GrammarFault(
                f"`{named.group()}` has control characters, which JSON escapes, and is not supported in a "
                "schema. List the characters that are meant",
                at,
            )
    return "".join(pieces)


def has_controls(named: re.Match[str]) -> bool:
    """Return whether a class by name is a negated one, or that of control characters, in any spelling."""
    name = named["long"] or named["short"]
    if name is None:
        return True
    loose = re.sub(r"[\s_-]|^is", "", name.casefold())
    return "^" in loose or "!" in loose or re.split("[=:]", loose)[-1] in CONTROLS


def class_end(pattern: str, start: int) -> int:
    """Return where the class that begins at `start` ends; classes within it, and escapes, belong to it."""
    depth, place = 0, start
    while place < len(pattern):
        if pattern[place] == "\\":
            place += 1
        elif pattern[place] == "[":
            depth += 1
        elif pattern[place] == "]":
            depth -= 1
            if not depth:
                return place + 1
        place += 1
    return len(pattern)
