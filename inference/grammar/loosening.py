"""Schemas that are followed as far as a grammar can, for who asks for no more; the rest is told."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence, Set
from itertools import combinations
from typing import Any

from inference.grammar.alternatives import MOST, Pairs, followed
from inference.grammar.checks import counts_names, dialect
from inference.grammar.fault import GrammarFault
from inference.grammar.keywords import BOUNDS, UNSUPPORTED, forbids, has_unsupported_format, may_be
from inference.grammar.meaning import copied
from inference.grammar.names import list_names
from inference.grammar.numbers import check_multiples, is_other_number
from inference.grammar.patterns import looks_around, without_null
from inference.grammar.tree import Place, SchemaTree
from inference.grammar_limits import GrammarLimits

NAME_COUNTS = ("minProperties", "maxProperties")
WORDS = UNSUPPORTED.keys() | BOUNDS | {"format", "pattern", "patternProperties", "oneOf", *NAME_COUNTS}
# Their values are names, or schemas of the same object, that may be of what it doesn't list
DEPENDING = frozenset({"dependentSchemas", "dependencies", "dependentRequired"})


def loosened(schema: Mapping[str, Any], limits: GrammarLimits) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a schema less what no grammar can express, and the keywords that it lost, in order.

    One that is malformed, or can't be a grammar for other reasons, is returned as it is.
    """
    if not _mentions(schema):
        return dict(schema), ()
    try:
        root: dict[str, Any] = copied(dict(schema))
        tree = list_names(SchemaTree(root, dialect(root), limits))
        schemas = [place.schema for place in tree.places if isinstance(place.schema, dict)]
        lost, losers = _loosen(schemas, tree.draft)
        if freed_of_multiples := _free_multiples(tree, limits):
            lost, losers = lost | {"multipleOf"}, losers | freed_of_multiples
        freed = [*_free_choices(tree, schemas, losers)]
    except (GrammarFault, TypeError, AttributeError, KeyError, ValueError, RecursionError):
        return dict(schema), ()
    lost |= {"oneOf"} if any(freed) else set()
    return (root, tuple(sorted(lost))) if lost or freed else (dict(schema), ())


def _mentions(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema has a word anywhere that may have to be left out."""
    stack: list[Any] = [schema]
    while stack:
        value = stack.pop()
        if isinstance(value, Mapping):
            if WORDS & value.keys():
                return True
            stack += value.values()
        elif isinstance(value, list | tuple):
            stack += value
    return False


def _loosen(schemas: Sequence[dict[str, Any]], draft: int) -> tuple[set[str], set[int]]:
    """Take out of schemas, in place, what no grammar can express; return the keywords, and whose by id."""
    lost: set[str] = set()
    losers: set[int] = set()
    for schema in schemas:
        if words := [*_losses(schema, draft)]:
            losers.add(id(schema))
            lost.update(words)
        if _has_cases_with_more_names(schema, words):  # or none of them could be met
            schema.setdefault("additionalProperties", True)
        for word in words:
            del schema[word]
        if "patternProperties" in words:  # a name that matched would be refused, or be held to another schema
            schema["additionalProperties"] = True
    return lost, losers


def _free_multiples(tree: SchemaTree, limits: GrammarLimits) -> set[int]:
    """Leave `multipleOf` out, in place, if all of them make too many remainders; return whose by id."""
    try:
        check_multiples(tree, limits)
    except GrammarFault:
        having = [place.schema for place in tree.places if isinstance(place.schema, dict)]
        having = [schema for schema in having if schema.pop("multipleOf", None) is not None]
        return {id(schema) for schema in having}
    return set()


def _free_choices(tree: SchemaTree, schemas: Sequence[dict[str, Any]], losers: Set[int]) -> Iterator[bool]:
    """Write `anyOf` for each `oneOf` that no grammar can be made of; yield whether more is valid then."""
    pairs, joined = Pairs(tree), any("allOf" in schema for schema in schemas)
    for schema in schemas:
        if "oneOf" not in schema or "anyOf" in schema:
            continue
        places = [followed(Place("", each, 0), tree) for each in schema["oneOf"]]
        looser = not losers.isdisjoint([*map(id, schema["oneOf"]), *(id(place.schema) for place in places)])
        apart = len(places) <= MOST and all(pairs.apart(*pair) for pair in combinations(places, 2))
        if joined or looser or not apart:
            schema["anyOf"] = schema.pop("oneOf")
            yield looser or not apart


def _has_cases_with_more_names(schema: dict[str, Any], words: Collection[str]) -> bool:
    """Return whether words of a schema that are left out speak of properties that it doesn't list."""
    names: set[str] = set()
    stack: list[Any] = [schema[word] for word in ("then", "else") if word in words]
    for word in DEPENDING.intersection(words):
        stack += schema[word].values()
    while stack:
        value = stack.pop()
        if isinstance(value, list):  # of names
            names.update(each for each in value if isinstance(each, str))
        elif isinstance(value, dict):
            names.update(value.get("properties", ()), value.get("required", ()))
            stack += (value[word] for word in ("if", "then", "else") if word in value)
            for word in ("allOf", "anyOf", "oneOf"):
                stack += value.get(word, ())
            for word in DEPENDING & value.keys():
                stack += value[word].values()
    return not names <= schema.get("properties", {}).keys()


def _losses(schema: dict[str, Any], draft: int) -> Iterator[str]:
    """Yield the words of a schema, not of those below it, that no grammar can express."""
    yield from (key for key in schema if key in UNSUPPORTED and forbids(schema, key, draft))
    if has_unsupported_format(schema):
        yield "format"
    if may_be(schema, "string") and isinstance(schema.get("pattern"), str) and is_lost(schema["pattern"]):
        yield "pattern"
    if any(map(is_lost, schema.get("patternProperties", ()))):
        yield "patternProperties"
    yield from (key for key in NAME_COUNTS if counts_names(schema, key))
    yield from (key for key in schema.keys() & BOUNDS if is_other_number(key, schema[key]))


def is_lost(pattern: str) -> bool:
    """Return whether an expression is one that no grammar can express."""
    try:
        without_null(pattern, "")
    except GrammarFault:
        return True
    return looks_around(pattern)
