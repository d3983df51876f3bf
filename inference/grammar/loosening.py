"""Schemas that are followed as far as a grammar can, for who asks for no more; the rest is told."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from inference.grammar.checks import counts_free_names, dialect
from inference.grammar.fault import GrammarFault
from inference.grammar.keywords import UNSUPPORTED, forbids, has_unsupported_format
from inference.grammar.limits import GrammarLimits
from inference.grammar.meaning import copied
from inference.grammar.names import list_names
from inference.grammar.patterns import pieces
from inference.grammar.tree import SchemaTree

WORDS = UNSUPPORTED.keys() | {"format", "pattern", "minProperties"}
# Outside of classes: what looks around or refers back, edges of words, and other characters that are escaped
AROUND = re.compile(r"\\(?:[1-9bB]|k<)|\(\?<?[=!]|\\.", re.DOTALL)
PLAIN_ESCAPE = re.compile(r"\\[^1-9bBk]", re.DOTALL)


def loosened(schema: Mapping[str, Any], limits: GrammarLimits) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Return a schema less what no grammar can express, and the keywords that it lost, in order.

    One that is malformed, or can't be a grammar for other reasons, is returned as it is.
    """
    if not _mentions(schema):
        return dict(schema), ()
    root: dict[str, Any] = copied(dict(schema))
    try:
        named = dialect(root)
        list_names(SchemaTree(root, named, limits))
        tree = SchemaTree(root, named, limits)
        schemas = [place.schema for place in tree.places if isinstance(place.schema, dict)]
        lost = {key for each in schemas for key in _lose(each, tree)}
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


def _lose(schema: dict[str, Any], tree: SchemaTree) -> list[str]:
    """Take out of a schema, not those below it, what no grammar can express; return the keywords."""
    lost = [key for key in schema if key in UNSUPPORTED and forbids(schema, key, tree.draft)]
    if has_unsupported_format(schema):
        lost.append("format")
    if isinstance(schema.get("pattern"), str) and looks_around(schema["pattern"]):
        lost.append("pattern")
    if counts_free_names(schema):
        lost.append("minProperties")
    for key in lost:
        del schema[key]
    return lost


def looks_around(pattern: str) -> bool:
    """Return whether an expression looks ahead or back, refers back, or asks for the edge of a word."""
    return any(
        any(not PLAIN_ESCAPE.fullmatch(found.group()) for found in AROUND.finditer(piece))
        for piece in pieces(pattern, "")
        if isinstance(piece, str)
    )
