"""Alternatives of `oneOf` that exclude each other, which makes it an `anyOf`.

llguidance finds that out for alternatives that stand in place, and not through references, by which
generators write unions of models told apart by a tag.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

from inference.grammar.fault import GrammarFault
from inference.grammar.keywords import says
from inference.grammar.tree import Place, SchemaTree

STEPS = 16  # of references, one to the next
MOST = 64  # alternatives that are compared, each with each
WORK = 200_000  # pairs and tags: a fraction of a second. Past it nothing is told apart
VALUES = 16  # that are looked at as fast as one schema
KINDS = frozenset({"null", "boolean", "object", "array", "number", "string"})


Spend = Callable[[int], None]


def freely(work: int) -> None:
    """Count no work: what has been compiled has its limits."""


def are_told_apart(tree: SchemaTree) -> bool:
    """Return whether there are alternatives of `oneOf` that all exclude each other by type or by a tag.

    Not beside `allOf`, in whose parts llguidance then loses some that are valid.
    """
    unions = [
        [*_alternatives(place, tree)]
        for place in tree.places
        if isinstance(place.schema, dict) and "oneOf" in place.schema
    ]
    joined = any(isinstance(place.schema, dict) and "allOf" in place.schema for place in tree.places)
    pairs = Pairs(tree)
    return (
        bool(unions)
        and not joined
        and all(
            len(union) <= MOST and all(pairs.apart(*pair) for pair in combinations(union, 2))
            for union in unions
        )
    )


def exclude_each_other(schemas: Sequence[Any], tree: SchemaTree, spend: Spend) -> bool:
    """Return whether no instance is valid by two of the schemas, as far as types and one tag of all show.

    Can be asked of any schema, also a malformed one. `spend` is told the work, as it comes, and ends it by
    what it raises.
    """
    alternatives = [Place("", schema, 0) for schema in schemas if schema is not False]
    spend(sum(1 + _size(place.schema, "type") // VALUES for place in alternatives))
    try:
        of_each = [kinds(place.schema) if isinstance(place.schema, dict) else KINDS for place in alternatives]
        objects = [place for place, found in zip(alternatives, of_each, strict=True) if found == {"object"}]
        met = [kind for found in of_each if found != {"object"} for kind in found] + ["object"] * bool(
            objects
        )
        return len(met) == len({*met}) and (len(objects) < 2 or _have_a_tag(objects, tree, spend))
    except (GrammarFault, TypeError, AttributeError):  # the compiler refuses it
        return False


class Pairs:
    """Compares alternatives of one tree, each pair once: many unions may refer to the same schemas."""

    def __init__(self, tree: SchemaTree, work: int = WORK) -> None:
        self._tree = tree
        self._work = work
        self._known: dict[tuple[int, int], bool] = {}  # by the schemas' ids
        self._tags: dict[int, dict[str, frozenset[str]]] = {}

    def apart(self, one: Place, other: Place) -> bool:
        """Return whether no instance is valid by both schemas, as far as types, tags and the work show."""
        if False in (one.schema, other.schema):
            return True
        if not isinstance(one.schema, dict) or not isinstance(other.schema, dict):
            return False
        self._work -= 1
        key = (id(one.schema), id(other.schema))
        if key not in self._known:
            self._known[key] = self._work > 0 and self._differ(one, other)
        return self._known[key]

    def _differ(self, one: Place, other: Place) -> bool:
        assert isinstance(one.schema, dict)
        assert isinstance(other.schema, dict)
        shared = kinds(one.schema) & kinds(other.schema)
        if _are_other_values(one.schema, other.schema):
            return True
        return not shared or (shared == {"object"} and self._differ_in_a_tag(one, other))

    def _differ_in_a_tag(self, one: Place, other: Place) -> bool:
        first, second = self._tags_of(one), self._tags_of(other)
        names = first.keys() & second.keys()
        self._work -= sum(len(first[name]) for name in names) + min(len(first), len(second))
        return any(first[name].isdisjoint(second[name]) for name in names)

    def _tags_of(self, place: Place) -> dict[str, frozenset[str]]:
        if id(place.schema) not in self._tags:
            self._tags[id(place.schema)] = _tags(place, self._tree, self._spend)
        return self._tags[id(place.schema)]

    def _spend(self, work: int) -> None:
        self._work -= work


def kinds(schema: dict[str, Any]) -> frozenset[str]:
    """Return the types that instances can have; integers are numbers."""
    if "type" not in schema:
        return KINDS
    types = schema["type"] if isinstance(schema["type"], list) else [schema["type"]]
    return frozenset("number" if kind == "integer" else kind for kind in types)


def _alternatives(place: Place, tree: SchemaTree) -> Iterator[Place]:
    assert isinstance(place.schema, dict)
    for schema in place.schema["oneOf"]:
        yield followed(Place(place.pointer, schema, place.depth), tree)


def followed(place: Place, tree: SchemaTree, spend: Spend = freely, *, alone: bool = False) -> Place:
    """Return the schema that a schema refers to in the end.

    What a schema says beside a reference makes less valid, never more; with `alone` one that does is the end.
    """
    for _ in range(STEPS):
        if not isinstance(place.schema, dict) or "$ref" not in place.schema:
            break
        if alone and says(place.schema) != {"$ref"}:
            break
        spend(1)
        place = Place(*tree.resolve(place), place.depth)
    return place


def _have_a_tag(objects: Sequence[Place], tree: SchemaTree, spend: Spend) -> bool:
    tags = [_tags(place, tree, spend) for place in objects]
    for name in set(tags[0]).intersection(*tags[1:]):
        spend(1 + sum(len(each[name]) for each in tags) // VALUES)
        values = [value for each in tags for value in each[name]]
        if len(values) == len({*values}):
            return True
    return False


def _tags(place: Place, tree: SchemaTree, spend: Spend) -> dict[str, frozenset[str]]:
    """Return the texts that each required property can be, of those that can be nothing else."""
    schema = place.schema
    assert isinstance(schema, dict)
    tags = {}
    spend(_size(schema, "required") // VALUES)
    for name in dict.fromkeys(schema.get("required", ())):
        spend(1)
        told = Place(place.pointer, schema.get("properties", {}).get(name, {}), place.depth)
        found = followed(told, tree, spend).schema
        if not isinstance(found, dict):
            continue
        spend(_size(found, "enum") // VALUES)
        values = found.get("enum", [found["const"]] if "const" in found else [])
        if values and all(isinstance(value, str) for value in values):
            tags[name] = frozenset(values)
    return tags


def _are_other_values(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether both schemas list texts and whole numbers, and none of them in common."""
    first, second = (schema.get("enum", [schema.get("const")]) for schema in (one, other))
    listed = all(type(value) in (str, int) for value in (*first, *second))
    return listed and set(first).isdisjoint(second)


def _size(schema: object, key: str) -> int:
    value = schema.get(key) if isinstance(schema, dict) else None
    return len(value) if isinstance(value, list) else 0
