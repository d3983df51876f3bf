"""The words of an expression that matches few, and patterns whose names are all listed anyway.

llguidance has such a pattern stand for further names, of which there are none: a text that begins one more
could never be ended.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from typing import Any

from inference.grammar.fault import join
from inference.grammar.names import referred
from inference.grammar.patterns import ESCAPE, CharClass, has_several, pieces
from inference.grammar.tree import Place, SchemaTree

MOST = 64  # words; objects whose patterns match more are left to llguidance
MOST_TEXT = 65_536  # characters of what stands below a pattern, which has the same schema for each word
PATTERNS = "patternProperties"

COUNT = re.compile(r"\{(\d{1,2})(?:,(\d{1,2}))?\}")
GROUP = re.compile(r"\((?:\?:|\?P?<[A-Za-z_]\w*>|(?!\?))")
TOKEN = re.compile(rf"{ESCAPE.pattern}|{GROUP.pattern}|\{{\d{{1,2}}(?:,\d{{1,2}})?\}}|.", re.DOTALL)
REPEATING = ("?", "*", "+", "{")
UNREAD = frozenset("^$.*+{}[]()|?")  # what is none of these is a character


class _Many(Exception):
    """An expression matches too many words, or is written in a way that isn't read here."""


def list_patterns(tree: SchemaTree) -> SchemaTree:
    """Return the tree with patterns that match nothing but listed names written as properties.

    That is done in place, and not where a reference leads to what would be moved.
    """
    objects = [place for place in tree.places if isinstance(place.schema, dict) and PATTERNS in place.schema]
    if not objects:
        return tree
    taken = referred(tree)
    inner_first = sorted(objects, key=lambda place: -place.pointer.count("/"))
    rewritten = [_rewrite(place, taken) for place in inner_first]
    return SchemaTree(tree.root, tree.dialect, tree.limits) if any(rewritten) else tree


def _rewrite(place: Place, taken: set[str]) -> bool:
    """Write one object's patterns as properties, where they can be."""
    schema = place.schema
    assert isinstance(schema, dict)
    found = False
    for pattern in [*schema[PATTERNS]]:
        words = words_of(pattern)
        listed = dict.fromkeys([*schema.get("properties", ()), *schema.get("required", ())])
        if words is None or not words <= listed.keys():
            continue
        moved = [join(place.pointer, PATTERNS, pattern)]
        moved += [join(place.pointer, "properties", word) for word in words]
        if taken.isdisjoint(moved) and len(words) * len(json.dumps(schema[PATTERNS][pattern])) <= MOST_TEXT:
            _move(schema, pattern, [name for name in listed if name in words])
            found = True
    return found


def _move(schema: dict[str, Any], pattern: str, names: Sequence[str]) -> None:
    moved = schema[PATTERNS].pop(pattern)
    properties = schema.setdefault("properties", {})
    for name in names:
        own = properties.get(name, True)
        properties[name] = moved if own in (True, {}) else {"allOf": [own, moved]}


def words_of(pattern: str) -> frozenset[str] | None:
    """Return all that an expression matches; None if that is much, or isn't easily read."""
    try:
        return frozenset(_Reader(pattern).whole())
    except _Many:
        return None


def _tokens(pattern: str) -> Iterator[str | CharClass]:
    """Yield an expression's classes, escapes, openers of groups, counts and single characters."""
    for piece in pieces(pattern, ""):
        if isinstance(piece, CharClass):
            yield piece
            continue
        place = 0
        while place < len(piece):
            found = TOKEN.match(piece, place)
            assert found is not None  # its last alternative is any character
            yield found.group()
            place = found.end()


class _Reader:
    """Reads an expression as the words that it matches."""

    def __init__(self, pattern: str) -> None:
        self._tokens = [*_tokens(pattern)]
        self._place = 0

    def whole(self) -> set[str]:
        """Return the words of alternatives, each of which has anchors at its ends."""
        words: set[str] = set()
        while True:
            self._expect("^")
            words |= self._sequence()
            self._expect("$")
            if self._place == len(self._tokens):
                return _few(words)
            self._expect("|")

    def _alternatives(self) -> set[str]:
        words = self._sequence()
        while self._takes("|"):
            words = _few(words | self._sequence())
        return words

    def _sequence(self) -> set[str]:
        words = {""}
        while (token := self._peek()) is not None and token not in ("|", ")", "$"):
            words = _joined(words, self._repeated())
        return words

    def _repeated(self) -> set[str]:
        once = self._one()
        token = self._peek()
        if token == "?":
            self._place += 1
            once = once | {""}
        elif isinstance(token, str) and (count := COUNT.fullmatch(token)):
            self._place += 1
            once = _times(once, int(count[1]), int(count[2] or count[1]))
        if self._peek() in REPEATING:
            raise _Many
        return once

    def _one(self) -> set[str]:
        token = self._peek()
        self._place += 1
        if isinstance(token, CharClass):
            return _characters(token)
        assert token is not None
        if GROUP.fullmatch(token):
            words = self._alternatives()
            self._expect(")")
            return words
        return {_character(token)}

    def _peek(self) -> str | CharClass | None:
        return self._tokens[self._place] if self._place < len(self._tokens) else None

    def _takes(self, sign: str) -> bool:
        taken = self._peek() == sign
        self._place += taken
        return taken

    def _expect(self, sign: str) -> None:
        if not self._takes(sign):
            raise _Many


def _few(words: set[str]) -> set[str]:
    if len(words) > MOST:
        raise _Many
    return words


def _joined(first: set[str], then: set[str]) -> set[str]:
    if len(first) * len(then) > MOST * MOST:
        raise _Many
    return _few({one + other for one in first for other in then})


def _times(once: set[str], least: int, most: int) -> set[str]:
    words: set[str] = set()
    repeated = {""}
    for count in range(most + 1):
        if count >= least:
            words |= repeated
        repeated = _joined(repeated, once) if count < most else repeated
    return _few(words)


def _character(token: str) -> str:
    """Return what a token stands for, if that is one character whoever reads it."""
    if len(token) == 1 and token not in UNREAD:
        return token
    if len(token) == 2 and token[0] == "\\" and not token[1].isalnum() and token[1] != "_":
        return token[1]
    raise _Many


def _characters(group: CharClass) -> set[str]:
    """Return the characters of a class."""
    if group.negated or not group.closed:
        raise _Many
    found: set[str] = set()
    for first, last in group.members:
        ends = [_member(first), _member(last or first)]
        if ord(ends[1]) - ord(ends[0]) > MOST:
            raise _Many
        found.update(map(chr, range(ord(ends[0]), ord(ends[1]) + 1)))
    return _few(found)


def _member(member: str) -> str:
    """Return what a class's member stands for: to it, most signs are characters."""
    if len(member) == 1:
        return member
    if has_several(member):
        raise _Many
    return _character(member)
