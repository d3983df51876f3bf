"""Whether a schema has an instance at all: recursion without an end, and `false`, leave none."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from inference.grammar.fault import GrammarFault, join
from inference.grammar.keywords import allows_nothing
from inference.grammar.tree import SchemaTree

WORK = 200_000  # schemas looked at; past that, what llguidance makes of it must do
CONTAINERS = frozenset({"object", "array"})


def check_finite(tree: SchemaTree) -> None:
    """Raise GrammarFault if no instance of the schema can be finite.

    What is in doubt passes: a grammar without an end then ends by length.
    """
    ending: set[str] = set()  # pointers of the schemas that are known to have a finite instance
    waiting, work = tree.places[::-1], 0
    while work <= WORK:
        work += len(waiting)
        rest = []
        for place in waiting:
            if obstacle(place.pointer, place.schema, tree, ending) is None:
                ending.add(place.pointer)
            else:
                rest.append(place)
        if "" in ending:
            return
        if len(rest) == len(waiting):
            raise _blame(tree, ending)
        waiting = tuple(rest)


def obstacle(at: str, schema: Any, tree: SchemaTree, ending: set[str]) -> tuple[str, str | None] | None:
    """Return what keeps a schema from a finite instance: a place in it, and the schema needed there."""
    if allows_nothing(schema):
        return at, None
    if schema is True or "const" in schema or "enum" in schema:
        return None
    for place, target in _needed(at, schema, tree):
        if target not in ending:
            return place, target
    for key in ("anyOf", "oneOf"):
        options = [join(at, key, index) for index in range(len(schema.get(key, ())))]
        if options and not ending.intersection(options):
            return options[0], options[0]
    types = schema.get("type", "null")
    kinds = set(types) if isinstance(types, list) else {types}
    if not kinds <= CONTAINERS:
        return None
    found = [
        next((need for need in _contents(at, schema, kind) if need[1] not in ending), None) for kind in kinds
    ]
    return None if None in found else found[0]


def _needed(at: str, schema: dict[str, Any], tree: SchemaTree) -> Iterator[tuple[str, str]]:
    if "$ref" in schema:
        yield join(at, "$ref"), tree.target(at, schema)
    for index in range(len(schema.get("allOf", ()))):
        yield join(at, "allOf", index), join(at, "allOf", index)


def _contents(at: str, schema: dict[str, Any], kind: str) -> Iterator[tuple[str, str]]:
    """Yield the schemas of what every object, or every array, must hold."""
    if kind == "object":
        for name in schema.get("required", ()):
            if name in schema.get("properties", ()):
                pointer = join(at, "properties", name)
                yield pointer, pointer
        return
    least, items = schema.get("minItems", 0), schema.get("items", True)
    key = "items" if isinstance(items, list) else "prefixItems"
    first = schema.get(key, ())
    for index in range(min(int(least), len(first))):
        yield join(at, key, index), join(at, key, index)
    rest = "additionalItems" if key == "items" else "items"
    if least > len(first) and rest in schema:
        yield join(at, rest), join(at, rest)


def _blame(tree: SchemaTree, ending: set[str]) -> GrammarFault:
    schemas = {place.pointer: place.schema for place in tree.places}
    at, seen = "", {""}
    while True:
        found = obstacle(at, schemas[at], tree, ending)
        assert found is not None  # `at` isn't in `ending`, and what it needs isn't either
        place, target = found
        if target is None:
            return GrammarFault(
                "nothing is valid here. Allow something, or leave out what requires it", place
            )
        if target in seen:
            return GrammarFault(
                "each instance would have to hold another one, without end. "
                "Let it be null, empty or left out, so that an instance can be finite",
                place,
            )
        seen.add(target)
        at = target
