"""Schemas as those who write them for a model mean them: narrower than JSON Schema's letter, as in TGI."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from inference.grammar.alternatives import VALUES, exclude_each_other
from inference.grammar.saying import (
    ANYTHING,
    LITERAL_WORDS,
    MOVING_REFERENCES,
    NOTHING,
    UNTOUCHED_WORDS,
    Document,
    Said,
    Strand,
    Unread,
    of_others,
    united,
)

Schema = Mapping[str, Any]

DEFINITIONS = ("$defs", "definitions")
WORK = 30_000  # schemas looked at: what a grammar may have at most takes less, unless it is made to take more
SMALL_WORK = 8_000  # of a small schema, which may be read where others wait: some tens of milliseconds
MANY_COMMAS = 1_000  # that a schema which isn't small has; a body with as many is read aside


def as_meant(schema: Schema) -> dict[str, Any]:
    """Return a schema whose objects are objects with the properties listed, and no others.

    JSON Schema lets a schema with `properties` and without `type` be a number, and an object have any
    further properties. TGI does neither, and a model that may goes on to invent some. So such a schema
    gets the type, and `additionalProperties: false` where it lists all that is said of the same object:
    by itself, by what is joined with it (`allOf`, `$ref` and the words beside them), and by alternatives in
    it. A definition has to list all of that wherever it is referred to. What is written then is valid by
    the letter, too: nothing is narrowed below `not` and other words by which it would loosen, nor in a
    `oneOf` whose alternatives don't exclude each other. A schema that is nested too deeply, or takes too
    much work, stays as it is.
    """
    try:
        root: dict[str, Any] = copied(dict(schema))
        Reading(root, WORK if commas(root) > MANY_COMMAS else SMALL_WORK).narrow()
    except (RecursionError, Unread):
        return dict(schema)
    return root


def copied(value: Any) -> Any:
    """Return a JSON value none of whose parts is another's."""
    if isinstance(value, dict):
        return {key: copied(each) for key, each in value.items()}
    return [copied(each) for each in value] if isinstance(value, list | tuple) else value


def commas(value: Any) -> int:
    """Return how many commas JSON's text of a value has."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return max(len(parts) - 1, 0) + sum(map(commas, parts))


class Reading:
    """A schema read from its root, each part with what is said of the same instance beside it."""

    def __init__(self, root: dict[str, Any], work: int) -> None:
        self._document = Document(root, work)
        self._stack: list[tuple[Any, Said]] = [(root, NOTHING)]
        self._seen: set[tuple[int, Said]] = set()
        self._parts: dict[int, dict[str, Any]] = {}  # by id, as in all that follow
        self._typed: set[int] = set()  # to be objects
        self._closed: set[int] = set()  # to have no more properties, as far as one place shows
        self._open: set[int] = set()  # to stay open because of another place
        self._fixed: set[int] = set()  # to stay as they are
        self._unions: list[tuple[int, list[int]]] = []  # all alternatives of the one were made objects

    def narrow(self) -> None:
        """Make the schema what it is meant to be, in place; raise Unread."""
        while self._stack:
            schema, beside = self._stack.pop()
            if not isinstance(schema, dict):
                continue
            self._document.spend(1 + len(beside.names) // 16)
            if (id(schema), beside) not in self._seen:
                self._seen.add((id(schema), beside))
                self._parts[id(schema)] = schema
                self._read(schema, beside)
        for union, alternatives in self._unions:
            if self._fixed.intersection(alternatives):  # which a number then passes, and no other one
                self._typed.add(union)
        for part in self._typed - self._fixed:
            self._parts[part].setdefault("type", "object")
        for part in self._closed - self._open - self._fixed:
            self._parts[part]["additionalProperties"] = False

    def _read(self, schema: dict[str, Any], beside: Said) -> None:
        strands, words = self._document.strands(schema), self._document.own(schema)
        around = beside | united(strand.said for strand in strands)
        if isinstance(schema.get("properties"), dict):
            whole = around | words
            lists_all = not whole.any_name and whole.names <= schema["properties"].keys()
            (self._closed if lists_all else self._open).add(id(schema))
            self._typed.add(id(schema))
        self._document.spend(sum(len(strand.said.names) for strand in strands) * len(strands) // 16)
        for strand, others in zip(strands, of_others([strand.said for strand in strands]), strict=True):
            if strand.word != "oneOf" or self._is_choice(schema, strand):
                self._stack += ((each, beside | words | others) for each in strand.schemas)
        self._read_values(schema, around)
        for word in (UNTOUCHED_WORDS | LITERAL_WORDS) & schema.keys():
            self._fix([schema[word]])

    def _read_values(self, schema: dict[str, Any], around: Said) -> None:
        """Read the schemas of an instance's properties and items, and those that are defined."""
        listed, patterns = _mapping(schema, "properties"), _mapping(schema, "patternProperties")
        of_listed, of_patterns = NOTHING, [NOTHING] * len(patterns)
        if patterns:  # a name can be listed, and match several
            said = [self._document.said([each]) for each in patterns.values()]
            of_listed, *of_patterns = of_others([self._document.said(listed.values()), *said])
        for name, each in listed.items():
            is_met = around.any_value or name in around.described
            self._stack.append((each, ANYTHING if is_met else of_listed))
        is_met = around.any_value or bool(around.described)
        for each, said_beside in zip(patterns.values(), of_patterns, strict=True):
            self._stack.append((each, ANYTHING if is_met else said_beside))
        is_met = around.any_value or not around.described <= listed.keys()
        self._stack.append((schema.get("additionalProperties"), ANYTHING if is_met else NOTHING))
        for each in _items(schema):
            self._stack.append((each, ANYTHING if around.items else NOTHING))
        for key in DEFINITIONS:
            self._stack += ((each, NOTHING) for each in _mapping(schema, key).values())

    def _is_choice(self, schema: dict[str, Any], strand: Strand) -> bool:
        """Return whether no instance fits two alternatives, so that fewer fit one if it is narrowed.

        Where all are meant for objects, they are made objects, and only the rest of them stays as it is.
        """
        tree, spend, given = self._document.tree, self._document.spend, strand.schemas
        ends = [self._document.end(each) for each in given]
        if exclude_each_other(ends, tree, spend):
            return True
        if schema.get("type", "object") != "object" or not all(map(_is_object, ends)):
            self._fix(given)
            return False
        if exclude_each_other([{**end, "type": "object"} for end in ends], tree, spend):
            self._unions.append((id(schema), [*map(id, ends)]))
            return True
        if any("$ref" in each for each in given):
            self._fix(given)
            return False
        self._unions.append((id(schema), [*map(id, ends)]))
        self._parts |= {id(each): each for each in given}
        self._typed.update(map(id, given))
        self._open.update(map(id, given))
        self._fix([value for each in given for value in each.values()])
        return False

    def _fix(self, values: Iterable[Any]) -> None:
        """Have all schemas stay as they are that values have anywhere, and that these refer to."""
        stack = [*values]
        while stack:
            value = stack.pop()
            if isinstance(value, list):
                self._document.spend(len(value) // VALUES)
                stack += value
            elif isinstance(value, dict) and id(value) not in self._fixed:
                self._document.spend(1)
                if MOVING_REFERENCES & value.keys():
                    raise Unread
                self._fixed.add(id(value))
                stack += value.values()
                if "$ref" in value:
                    stack.append(self._document.target(value))


def _mapping(schema: dict[str, Any], key: str) -> dict[str, Any]:
    value = schema.get(key)
    return value if isinstance(value, dict) else {}


def _items(schema: dict[str, Any]) -> Iterable[Any]:
    for key in ("items", "prefixItems", "additionalItems"):
        value = schema.get(key)
        yield from value if isinstance(value, list) else [value]


def _is_object(schema: Any) -> bool:
    """Return whether a schema is meant for objects: of several, none then is an alternative for others."""
    return isinstance(schema, dict) and (
        schema.get("type") == "object"
        or ("type" not in schema and isinstance(schema.get("properties"), dict))
    )
