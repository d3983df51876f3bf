"""Grammars in Lark's notation as one regular expression, which holds where a grammar can't: within JSON."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import NamedTuple, TypeAlias

from inference.grammar.fault import GrammarFault
from inference.grammar.patterns import pieces
from inference.grammar_limits import GrammarLimits

MOST = 20_000  # characters of a grammar
# Of its expression, in which each use of a rule repeats it: as one may have, less what is put around it
MOST_WRITTEN = GrammarLimits().regex_chars - len("^(?:)$")
STARTS = "start"
TOKEN = re.compile(
    r"""(?P<blank>\s+|//[^\n]*|\#[^\n]*)
    |(?P<load>%import[ \t]+common[^\n]*)
    |(?P<head>[?!]{0,2}[A-Za-z_]\w*(?:\.-?\d+)?[ \t]*:)
    |(?P<name>[A-Za-z_]\w*)
    |(?P<span>"(?:\\.|[^"\\\n])+"[ \t]*\.\.[ \t]*"(?:\\.|[^"\\\n])+")
    |(?P<text>"(?:\\.|[^"\\\n])*"i?)
    |(?P<regex>/(?:\\.|[^/\\\n])+/[a-z]*)
    |(?P<alias>->[ \t]*[A-Za-z_]\w*)
    |(?P<count>~[ \t]*\d+(?:[ \t]*\.\.[ \t]*\d+)?)
    |(?P<sign>[|()\[\]?*+])""",
    re.VERBOSE,
)
ESCAPE = re.compile(r"\\(.)", re.DOTALL)
KNOWN_ESCAPES = frozenset("Uuxnftr\\\"'")  # the others are two characters, as Lark reads them
LOADED = re.compile(
    r"%import[ \t]+common(?:\.(?P<one>\w+)(?:[ \t]*->[ \t]*(?P<other>\w+))?"
    r"|[ \t]*\((?P<list>[\w, \t]+)\))[ \t\r]*(?:(?://|\#).*)?"
)
COMMON: Mapping[str, str] = {
    "DIGIT": "[0-9]",
    "HEXDIGIT": "[0-9A-Fa-f]",
    "INT": "[0-9]+",
    "SIGNED_INT": r"[+\-]?[0-9]+",
    "DECIMAL": r"(?:[0-9]+\.[0-9]*|\.[0-9]+)",
    "NUMBER": r"(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+\-]?[0-9]+)?",
    "SIGNED_NUMBER": r"[+\-]?(?:[0-9]+(?:\.[0-9]*)?|\.[0-9]+)(?:[eE][+\-]?[0-9]+)?",
    "LCASE_LETTER": "[a-z]",
    "UCASE_LETTER": "[A-Z]",
    "LETTER": "[A-Za-z]",
    "WORD": "[A-Za-z]+",
    "CNAME": "[A-Za-z_][A-Za-z_0-9]*",
    "ESCAPED_STRING": r'"(?:\\.|[^"\\\n])*"',
    "WS_INLINE": r"[ \t]+",
    "WS": r"[ \t\f\r\n]+",
    "CR": r"\r",
    "LF": r"\n",
    "NEWLINE": r"(?:\r?\n)+",
}
Node: TypeAlias = Callable[[tuple[str, ...]], str]
"""A part of a rule: returns its expression within the rules that are being written."""


class NotRegular(Exception):
    """No expression says what a grammar does, or its notation isn't known here."""


@lru_cache(maxsize=64)
def expression(grammar: str) -> str | None:
    """Return the regular expression of the texts that a grammar allows; None if there is no short one.

    Clients send the same ones with each request. There is none for rules within themselves, and here none for
    `%ignore`, templates and expressions with anchors.
    """
    if len(grammar) > MOST:
        return None
    try:
        written = _Rules(grammar).written(STARTS, ())
        return written if len(written) <= MOST_WRITTEN else None
    except (NotRegular, GrammarFault, RecursionError, SyntaxError, ValueError):
        return None


class _Token(NamedTuple):
    kind: str
    text: str


class _Rules:
    """The rules of one grammar."""

    def __init__(self, grammar: str) -> None:
        self._tokens = list(_tokens(grammar))
        self._at = 0
        self._rules: dict[str, Node] = {}
        self._known: dict[str, str] = {}
        while self._at < len(self._tokens):
            self._statement()

    def written(self, name: str, within: tuple[str, ...]) -> str:
        """Return the expression of a rule; raise NotRegular."""
        if name not in self._known:
            if name in within or name not in self._rules:
                raise NotRegular(name)
            self._known[name] = f"(?:{self._rules[name]((*within, name))})"
        return self._known[name]

    def _statement(self) -> None:
        token = self._next()
        if token.kind == "load":
            self._known.update(_loaded(token.text))
            return
        name = re.sub(r"[?!]|\..*|[ \t]*:", "", token.text)
        if token.kind != "head" or name in self._rules:
            raise NotRegular(token.text)
        self._rules[name] = self._alternatives()

    def _alternatives(self) -> Node:
        found = [self._sequence()]
        while self._takes("|"):
            found.append(self._sequence())
        return lambda within: _joined((each(within) for each in found), "|")

    def _sequence(self) -> Node:
        found: list[Node] = []
        while (token := self._peek()) is not None and token.kind not in ("head", "load"):
            if token.text in ("|", ")", "]"):
                break
            if token.kind == "alias":
                self._at += 1
            else:
                found.append(self._repeated())
        return lambda within: _joined((each(within) for each in found), "")

    def _repeated(self) -> Node:
        one = self._one()
        token = self._peek()
        if token is None or not (token.text in ("?", "*", "+") or token.kind == "count"):
            return one
        self._at += 1
        times = token.text if token.kind != "count" else _times(token.text)
        return lambda within: f"(?:{one(within)}){times}"

    def _one(self) -> Node:
        token = self._next()
        if token.text in ("(", "["):
            inner = self._alternatives()
            if not self._takes(")" if token.text == "(" else "]"):
                raise NotRegular(token.text)
            may_lack = "?" if token.text == "[" else ""
            return lambda within: f"(?:{inner(within)}){may_lack}"
        if token.kind == "name":
            return lambda within: self.written(token.text, within)
        if token.kind in LITERALS:
            literal = LITERALS[token.kind](token.text)
            return lambda _: literal
        raise NotRegular(token.text)

    def _peek(self) -> _Token | None:
        return self._tokens[self._at] if self._at < len(self._tokens) else None

    def _next(self) -> _Token:
        token = self._peek()
        if token is None:
            raise NotRegular("it ends")
        self._at += 1
        return token

    def _takes(self, sign: str) -> bool:
        token = self._peek()
        found = token is not None and token.text == sign
        self._at += found
        return found


def _tokens(grammar: str) -> Iterator[_Token]:
    place = 0
    while place < len(grammar):
        found = TOKEN.match(grammar, place)
        if found is None:
            raise NotRegular(grammar[place : place + 20])
        if found.lastgroup not in ("blank", None):
            yield _Token(str(found.lastgroup), found.group())
        place = found.end()


def _loaded(statement: str) -> Iterator[tuple[str, str]]:
    """Yield the names of terminals that are imported, and their expressions."""
    found = LOADED.fullmatch(statement)
    if found is None:
        raise NotRegular(statement)
    names = [found["one"]] if found["one"] else [each.strip() for each in found["list"].split(",")]
    for name in names:
        if name not in COMMON:
            raise NotRegular(name)
        yield found["other"] or name, COMMON[name]


def _times(count: str) -> str:
    least, _, most = count.removeprefix("~").replace(" ", "").replace("\t", "").partition("..")
    return f"{{{int(least)},{int(most)}}}" if most else f"{{{int(least)}}}"


def _joined(parts: Iterable[str], between: str) -> str:
    """Return parts put together; raise NotRegular as soon as they are too long: each may be long."""
    found: list[str] = []
    size = 0
    for part in parts:
        found.append(part)
        size += len(part) + len(between)
        if size > MOST_WRITTEN:
            raise NotRegular("it is long")
    return between.join(found)


def _read(text: str) -> str:
    """Return what a string of Lark stands for."""
    if "\\" not in text:
        return text[1:-1]
    escaped = ESCAPE.sub(lambda found: ("" if found[1] in KNOWN_ESCAPES else "\\") + found.group(), text)
    return str(ast.literal_eval(escaped))


def _exactly(text: str) -> str:
    return "".join(char if char.isalnum() and char.isascii() else f"\\x{{{ord(char):x}}}" for char in text)


def _text(token: str) -> str:
    plain = token.removesuffix("i") if token.endswith('"i') else token
    return _exactly(_read(plain)) if plain == token else f"(?i:{_exactly(_read(plain))})"


def _span(token: str) -> str:
    first, last = (_read(end.strip()) for end in token.split("..") if end.strip())
    if len(first) != 1 or len(last) != 1:
        raise NotRegular(token)
    return f"[{_exactly(first)}-{_exactly(last)}]"


def _regex(token: str) -> str:
    body, _, flags = token[1:].rpartition("/")
    outside = "".join(piece for piece in pieces(body, "") if isinstance(piece, str))
    plain = ESCAPE.sub(lambda found: "^" if found[1] in "AzZG" else "", outside)
    if set(flags) - {"i", "s"} or "^" in plain or "$" in plain:
        raise NotRegular(token)
    return f"(?{flags}:{body})"


LITERALS: Mapping[str, Callable[[str], str]] = {"text": _text, "span": _span, "regex": _regex}
