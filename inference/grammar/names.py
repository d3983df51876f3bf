"""`propertyNames` by words that a grammar can express: names that are listed, or match an expression."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from inference.grammar.fault import GrammarFault, join
from inference.grammar.keywords import (
    ANNOTATIONS,
    KEYWORDS,
    UNSUPPORTED,
    Node,
    allows_all_names,
    forbids,
    may_be,
)
from inference.grammar.patterns import looks_around
from inference.grammar.tree import Place, Schema, SchemaTree

WORD = "propertyNames"
STEPS = 16  # of references, one to the next
MOST_TEXT = 65_536  # characters of what stands below a list of names, which has the same schema for each


def list_names(tree: SchemaTree) -> SchemaTree:
    """Return the tree with the names of its objects written as properties and patterns, where they can be.

    That is done in place, and not where a reference leads to what would be moved.
    """
    if tree.draft < UNSUPPORTED[WORD][0]:
        return tree
    objects = [place for place in tree.places if isinstance(place.schema, dict) and WORD in place.schema]
    if not objects:
        return tree
    referred = _referred(tree)
    inner_first = sorted(objects, key=lambda place: -place.pointer.count("/"))
    rewritten = [_rewrite(place, tree, referred) for place in inner_first]
    return SchemaTree(tree.root, tree.dialect, tree.limits) if any(rewritten) else tree


def check_names(tree: SchemaTree) -> None:
    """Raise GrammarFault for names of objects that no grammar can express."""
    for place in tree.places:
        if (
            isinstance(place.schema, dict)
            and WORD in place.schema
            and forbids(place.schema, WORD, tree.draft)
        ):
            raise GrammarFault(
                f"`{WORD}` is not supported. {UNSUPPORTED[WORD][1]}", join(place.pointer, WORD)
            )


def _referred(tree: SchemaTree) -> set[str]:
    """Return the pointers that references lead to."""
    schemas = ((place.pointer, place.schema) for place in tree.places if isinstance(place.schema, dict))
    return {tree.target(pointer, schema) for pointer, schema in schemas if "$ref" in schema}


def _rewrite(place: Place, tree: SchemaTree, referred: set[str]) -> bool:
    schema = place.schema
    assert isinstance(schema, dict)
    at = join(place.pointer, WORD)
    names = _followed(Place(at, schema[WORD], place.depth), tree)
    moved = (at, join(place.pointer, "additionalProperties"))
    if any(f"{pointer}/".startswith(f"{each}/") for pointer in referred for each in moved):
        return False
    if not allows_all_names(names) and not _list(schema, names):
        return False
    del schema[WORD]
    return True


def _list(schema: dict[str, Any], names: Schema | Node) -> bool:
    """Write names as properties or as a pattern; return whether that can be done."""
    if not isinstance(names, Mapping) or not may_be(names, "string") or "patternProperties" in schema:
        return False
    words = names.keys() & KEYWORDS - ANNOTATIONS - {"type"}
    others = schema.get("additionalProperties", True)
    listed = names.get("enum", [names["const"]] if "const" in names else None)
    if len(words) == 1 and isinstance(listed, list) and all(isinstance(name, str) for name in listed):
        if len(listed) * len(json.dumps(others)) > MOST_TEXT:
            return False
        own = {name: each for name, each in schema.get("properties", {}).items() if name in listed}
        more = {} if others is False else {name: others for name in listed if name not in own}
        schema["properties"] = own | more
    elif words == {"pattern"} and "properties" not in schema and not looks_around(names["pattern"]):
        schema["patternProperties"] = {} if others is False else {names["pattern"]: others}
    else:
        return False
    schema["additionalProperties"] = False
    return True


def _followed(place: Place, tree: SchemaTree) -> Schema | Node:
    """Return the schema that a schema refers to in the end; itself if it says more than that."""
    for _ in range(STEPS):
        schema = place.schema
        if not isinstance(schema, dict) or schema.keys() & KEYWORDS - ANNOTATIONS != {"$ref"}:
            break
        place = Place(*tree.resolve(place), place.depth)
    return place.schema
