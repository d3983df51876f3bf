"""Schemas that are followed as far as a grammar can, for who asks for no more; the rest is told."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from inference.grammar.checks import counts_free_names, dialect
from inference.grammar.fault import GrammarFault
from inference.grammar.keywords import UNSUPPORTED, forbids, has_unsupported_format, may_be
from inference.grammar.limits import GrammarLimits
from inference.grammar.meaning import copied
from inference.grammar.names import list_names
from inference.grammar.patterns import looks_around
from inference.grammar.tree import SchemaTree

WORDS = UNSUPPORTED.keys() | {"format", "pattern", "patternProperties", "minProperties"}


def loosened(schema: Mapping[str, Any], limits: GrammarLimits) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a schema less what no grammar can express, and the keywords that it lost, in order.

    One that is malformed, or can't be a grammar for other reasons, is returned as it is.
    """
    if not _mentions(schema):
        return dict(schema), ()
    root: dict[str, Any] = copied(dict(schema))
    try:
        tree = list_names(SchemaTree(root, dialect(root), limits))
        lost = _loosen(tree)
    except (GrammarFault, TypeError, AttributeError, KeyError, ValueError, RecursionError):
        return dict(schema), ()
    return (root, tuple(sorted(lost))) if lost else (dict(schema), ())


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


def _loosen(tree: SchemaTree) -> set[str]:
    """Take out of all schemas, in place, what no grammar can express; return the keywords."""
    lost: set[str] = set()
    losers: set[int] = set()
    schemas = [place.schema for place in tree.places if isinstance(place.schema, dict)]
    for schema in schemas:
        if words := [*_losses(schema, tree.draft)]:
            losers.add(id(schema))
            lost.update(words)
        for word in words:
            del schema[word]
        if "patternProperties" in words:  # a name that matched would be refused, or be held to another schema
            schema["additionalProperties"] = True
    for schema in schemas:  # which may not exclude each other any more
        if losers.intersection(map(id, schema.get("oneOf", ()))) and "anyOf" not in schema:
            schema["anyOf"] = schema.pop("oneOf")
            lost.add("oneOf")
    return lost


def _losses(schema: dict[str, Any], draft: int) -> Iterator[str]:
    """Yield the words of a schema, not of those below it, that no grammar can express."""
    yield from (key for key in schema if key in UNSUPPORTED and forbids(schema, key, draft))
    if has_unsupported_format(schema):
        yield "format"
    if (
        may_be(schema, "string")
        and isinstance(schema.get("pattern"), str)
        and looks_around(schema["pattern"])
    ):
        yield "pattern"
    if any(looks_around(pattern) for pattern in schema.get("patternProperties", ())):
        yield "patternProperties"
    if counts_free_names(schema):
        yield "minProperties"
