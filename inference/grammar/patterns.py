"""Regular expressions in schemas: what llguidance gets wrong when it writes them as JSON strings.

A class of characters that has all control characters, and not the quotation mark or not the
backslash, lets it write these by their escapes all the same: `^[^"]$` then accepts "\\"". Without
NUL in the class it doesn't. JSON holds NUL as an escape only, so that nobody misses it.

Classes are read as Python and JavaScript read them, and written so that Rust reads the same: to it,
`--`, `&&`, `~~` and `[` within a class are operators and further classes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from inference.grammar.fault import GrammarFault, excerpt

NULL, ONE = r"\x00", r"\x01"
# Rust's, within other classes; to others, and with any other name, these are characters
POSIX = re.compile(
    r"\[:\^?(?:alnum|alpha|ascii|blank|cntrl|digit|graph|lower|print|punct|space|upper|word|xdigit):\]"
)
# Classes that have control characters, and lack others, by their names. No name has a backslash: to
# look for `}` beyond one would take time that grows with the square of the openers' number
BY_NAME = re.compile(rf"\\P|{POSIX.pattern}|\\p(?:\{{(?P<long>[^}}\\]*)\}}|(?P<short>.))")
CONTROLS = frozenset({"c", "cc", "cntrl", "control", "other"})
# NUL: by its number, as an escape of its own or as it is
NULLS = re.compile(r"\\x00|\\u0000|\\U0{8}|\\[uUx]\{0+\}|\\0|\\c@|\x00")
ESCAPE = re.compile(
    r"\\(?:[pPxuU]\{[^}\\]*\}|[pP][A-Za-z]|x[\da-fA-F]{2}|u[\da-fA-F]{4}|U[\da-fA-F]{8}|c@|.|\Z)", re.DOTALL
)
PLAIN = re.compile(r"(?:[^\[\\]|\\(?:.|\Z))+", re.DOTALL)  # what stands between classes
OPERATORS = frozenset("[]-&~")  # within a class, to Rust, alone or doubled


# Outside of classes: what looks around or refers back, edges of words, and other characters that are escaped
AROUND = re.compile(r"\\(?:[1-9bB]|k<)|\(\?<?[=!]|\\.", re.DOTALL)
PLAIN_ESCAPE = re.compile(r"\\[^1-9bBk]", re.DOTALL)


@dataclass(frozen=True, slots=True)
class CharClass:
    """A class of characters in brackets, as Python reads it."""

    text: str
    negated: bool
    members: tuple[tuple[str, str], ...]  # ranges by their ends; what is none, before ""
    closed: bool  # if not, the expression is malformed, and is left so

    def written(self, spell: Callable[[str], str]) -> str:
        """Return the class for Rust, its members as `spell` writes them."""
        inner = (spell(first) + ("-" + spell(last) if last else "") for first, last in self.members)
        return f"[{'^' * self.negated}{''.join(inner)}{']' * self.closed}"


def pieces(pattern: str, at: str) -> Iterator[str | CharClass]:
    """Yield an expression's classes and the texts between; raise GrammarFault for what is no range."""
    place = 0
    while place < len(pattern):
        plain = PLAIN.match(pattern, place)
        piece = plain.group() if plain else _class(pattern, place, at)
        yield piece
        place += len(piece if isinstance(piece, str) else piece.text)


def _class(pattern: str, start: int, at: str) -> CharClass:
    negated = pattern.startswith("^", start + 1)
    place = start + 1 + negated
    found: list[tuple[str, str]] = []
    while place < len(pattern) and not (found and pattern[place] == "]"):
        first, last = _member(pattern, place, at)
        found.append((first, last))
        place += len(first) + (1 + len(last) if last else 0)
    closed = place < len(pattern)
    return CharClass(pattern[start : place + closed], negated, tuple(found), closed)


def _member(pattern: str, place: int, at: str) -> tuple[str, str]:
    """Return the ends of the range at a place within a class; "" for the second if it is none."""
    named = POSIX.match(pattern, place) if pattern[place] == "[" else None
    first = named.group() if named else _one(pattern, place)
    after = place + len(first)
    if pattern[after : after + 1] != "-" or pattern[after + 1 : after + 2] in ("", "]"):
        return first, ""
    last = _one(pattern, after + 1)
    # `[\w-.]` is common, and nobody takes it for a range. Others of these are read in many ways
    if last == "-" if has_several(first) else has_several(last):
        raise GrammarFault(
            "the regular expression is not valid: in a class of characters, "
            f"{excerpt(f'`{first}-{last}`')} is no range. Write `\\-` for the character",
            at,
        )
    return first, "" if has_several(first) else last


def _one(pattern: str, place: int) -> str:
    """Return the character or the escape at a place within a class."""
    escape = ESCAPE.match(pattern, place) if pattern[place] == "\\" else None
    return escape.group() if escape else pattern[place]


def has_several(member: str) -> bool:
    """Return whether a class's member stands for several characters."""
    return len(member) > 1 and (member[0] == "[" or member[1] in "dDwWsSpP")


def literal(member: str) -> str:
    """Return how Rust is told that a class's member is no operator."""
    return "\\" + member if member in OPERATORS else member


def looks_around(pattern: str) -> bool:
    """Return whether an expression looks ahead or back, refers back, or asks for the edge of a word."""
    return any(
        any(not PLAIN_ESCAPE.fullmatch(found.group()) for found in AROUND.finditer(piece))
        for piece in pieces(pattern, "")
        if isinstance(piece, str)
    )


def without_null(pattern: str, at: str) -> str:
    """Return an expression whose classes of characters leave NUL out; raise GrammarFault where they can't."""
    parts = [piece if isinstance(piece, str) else _class_without_null(piece) for piece in pieces(pattern, at)]
    for named in BY_NAME.finditer(pattern):
        if has_controls(named):
            raise GrammarFault(
                f"`{excerpt(named.group())}` has control characters, which JSON escapes, and is not "
                "supported in a schema. List the characters that are meant",
                at,
            )
    return "".join(parts)


def _class_without_null(piece: CharClass) -> str:
    if piece.negated:
        return piece.written(literal).replace("[^", f"[^{NULL}", 1)
    members = tuple(_from_one(first, last) for first, last in piece.members)
    return CharClass(piece.text, False, members, piece.closed).written(literal)


def _from_one(first: str, last: str) -> tuple[str, str]:
    is_wide = last and NULLS.fullmatch(first) and not NULLS.fullmatch(last)
    return (ONE if is_wide else first), last


def has_controls(named: re.Match[str]) -> bool:
    """Return whether a class by name is a negated one, or that of control characters, in any spelling."""
    name = named["long"] or named["short"]
    if name is None:
        return True
    loose = re.sub(r"[\s_-]|^is", "", name.casefold())
    return "^" in loose or "!" in loose or re.split("[=:]", loose)[-1] in CONTROLS
