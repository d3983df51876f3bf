"""`propertyNames` by words that a grammar can express: names that are listed, or match an expression."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from inference.grammar.alternatives import followed
from inference.grammar.fault import join
from inference.grammar.keywords import NAMES, UNSUPPORTED, Node, allows_all_names, may_be, says
from inference.grammar.patterns import looks_around
from inference.grammar.tree import Place, Schema, SchemaTree

MOST_TEXT = 65_536  # characters of what stands below a list of names, which has the same schema for each


def list_names(tree: SchemaTree) -> SchemaTree:
    """Return the tree with the names of its objects written as properties and patterns, where they can be.

    That is done in place, and not where a reference leads to what would be moved.
    """
    if tree.draft < UNSUPPORTED[NAMES][0]:
        return tree
    objects = [place for place in tree.places if isinstance(place.schema, dict) and NAMES in place.schema]
    if not objects:
        return tree
    taken = referred(tree)
    inner_first = sorted(objects, key=lambda place: -place.pointer.count("/"))
    rewritten = [_rewrite(place, tree, taken) for place in inner_first]
    return SchemaTree(tree.root, tree.dialect, tree.limits) if any(rewritten) else tree


def referred(tree: SchemaTree) -> set[str]:
    """Return the pointers that references lead to, and those of all that these lie in."""
    schemas = ((place.pointer, place.schema) for place in tree.places if isinstance(place.schema, dict))
    targets = {tree.target(pointer, schema) for pointer, schema in schemas if "$ref" in schema}
    return {above for pointer in targets for above in _above(pointer)}


def _above(pointer: str) -> Iterator[str]:
    """Yield a pointer and those of all that it lies in."""
    yield pointer
    while pointer:
        pointer = pointer.rpartition("/")[0]
        yield pointer


def _rewrite(place: Place, tree: SchemaTree, taken: set[str]) -> bool:
    """Write one object's names in other words, unless something in what would move is referred to."""
    schema = place.schema
    assert isinstance(schema, dict)
    at = join(place.pointer, NAMES)
    names = followed(Place(at, schema[NAMES], place.depth), tree, alone=True).schema
    if not taken.isdisjoint((at, join(place.pointer, "additionalProperties"))):
        return False
    if not allows_all_names(names) and not _list(schema, names):
        return False
    del schema[NAMES]
    return True


def _list(schema: dict[str, Any], names: Schema | Node) -> bool:
    """Write names as properties or as a pattern; return whether that can be done."""
    if not isinstance(names, Mapping) or not may_be(names, "string") or "patternProperties" in schema:
        return False
    words = says(names) - {"type"}
    others = schema.get("additionalProperties", True)
    listed = names.get("enum", [names["const"]] if "const" in names else None)
    if len(words) == 1 and isinstance(listed, list) and all(isinstance(name, str) for name in listed):
        if len(listed) * len(json.dumps(others)) > MOST_TEXT:
            return False
        every = dict.fromkeys(listed, others)
        own = {name: each for name, each in schema.get("properties", {}).items() if name in every}
        schema["properties"] = own if others is False else own | {**every, **own}
    elif words == {"pattern"} and "properties" not in schema and not looks_around(names["pattern"]):
        schema["patternProperties"] = {} if others is False else {names["pattern"]: others}
    else:
        return False
    schema["additionalProperties"] = False
    return True
