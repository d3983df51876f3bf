"""What schemas say of one and the same instance: which properties it may have, and what is in them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from inference.grammar.alternatives import STEPS, VALUES
from inference.grammar.fault import GrammarFault
from inference.grammar.tree import LATEST, Place, SchemaTree
from inference.grammar_limits import GrammarLimits

# Each may allow, require or forbid properties that a schema doesn't list
NAMING_WORDS = frozenset({"patternProperties", "additionalProperties", "minProperties", "maxProperties"})
ITEM_WORDS = frozenset({"items", "prefixItems", "additionalItems"})
# What is valid by these may be invalid by what is narrower. No grammar can express them
UNTOUCHED_WORDS = frozenset(
    (
        "not if then else dependencies dependentSchemas dependentRequired propertyNames "
        "unevaluatedProperties contains minContains maxContains unevaluatedItems uniqueItems contentSchema"
    ).split()
)
LITERAL_WORDS = frozenset({"enum", "const"})
MOVING_REFERENCES = frozenset({"$dynamicRef", "$recursiveRef"})  # lead elsewhere by the way one came
# A schema with none of these says nothing of an object's properties
PROPERTY_WORDS = (
    NAMING_WORDS
    | UNTOUCHED_WORDS
    | LITERAL_WORDS
    | MOVING_REFERENCES
    | {"properties", "required", "$ref", "allOf", "anyOf", "oneOf"}
)


class Unread(Exception):
    """A schema that takes too much work, or more than its text, to say what it says."""


@dataclass(frozen=True, slots=True)
class Said:
    """What is said of an instance."""

    names: frozenset[str] = frozenset()  # of the properties that are listed or required
    described: frozenset[str] = frozenset()  # of those whose values are spoken of
    any_name: bool = False  # it may be about properties of any name
    any_value: bool = False  # and about their values
    items: bool = False  # about those of an array

    def __or__(self, other: Said) -> Said:
        if other is NOTHING or self is ANYTHING:
            return self
        if self is NOTHING or other is ANYTHING:
            return other
        return Said(
            self.names | other.names,
            self.described | other.described,
            self.any_name or other.any_name,
            self.any_value or other.any_value,
            self.items or other.items,
        )


NOTHING, ANYTHING = Said(), Said(any_name=True, any_value=True, items=True)


@dataclass(frozen=True, slots=True)
class Strand:
    """Schemas in a schema for the instance that it is of itself: all of them, or alternatives."""

    word: str
    schemas: Sequence[Any]
    said: Said


class Document:
    """A schema's text, for what its parts say; work is counted, and there may be `work` of it."""

    def __init__(self, root: dict[str, Any], work: int) -> None:
        self.tree = SchemaTree(root, LATEST, GrammarLimits())
        self._work = work
        self._targets: dict[str, Any] = {}
        self._known: dict[int, Said] = {}  # by the schema's id, with all that it refers to
        self._own: dict[int, Said] = {}  # by the same, without

    def spend(self, work: int) -> None:
        """Count work; raise Unread past the limit."""
        self._work -= work
        if self._work < 0:
            raise Unread

    def own(self, schema: dict[str, Any]) -> Said:
        """Return what a schema says without others."""
        if id(schema) not in self._own:
            values = [schema.get(key) for key in ("enum", "required", "properties")]
            self.spend(sum(len(each) for each in values if isinstance(each, list | dict)) // VALUES)
            self._own[id(schema)] = own(schema)
        return self._own[id(schema)]

    def target(self, schema: dict[str, Any]) -> Any:
        """Return what a schema refers to, None for nothing in this document."""
        reference = schema["$ref"]
        if not isinstance(reference, str):
            return None
        if reference not in self._targets:
            try:
                self._targets[reference] = self.tree.resolve(Place("", schema, 0))[1]
            except GrammarFault:  # the compiler says so, with the place
                self._targets[reference] = None
        return self._targets[reference]

    def end(self, schema: Any) -> Any:
        """Return what a schema refers to in the end: itself, if it refers to nothing."""
        for _ in range(STEPS):
            if not isinstance(schema, dict) or "$ref" not in schema:
                break
            schema = self.target(schema)
        return schema

    def strands(self, schema: dict[str, Any]) -> list[Strand]:
        """Return all that a schema says by other schemas of the instance that it is of."""
        return [
            Strand(word, schemas, ANYTHING if None in schemas else self.said(schemas))
            for word, schemas in self._strands(schema)
        ]

    def said(self, schemas: Iterable[Any]) -> Said:
        """Return what schemas say, each with all that it refers to, joins, or has alternatives in."""
        said = NOTHING
        for schema in schemas:
            said |= self._said(schema)
            self.spend(1 + len(said.names) // 16)
        return said

    def _said(self, schema: Any) -> Said:
        if not isinstance(schema, dict):
            return NOTHING
        if id(schema) not in self._known:
            self._known[id(schema)] = self._gathered(schema)
        return self._known[id(schema)]

    def _gathered(self, schema: dict[str, Any]) -> Said:
        said, seen = NOTHING, set()
        stack: list[Any] = [schema]
        while stack:
            part = stack.pop()
            if part is None:
                return ANYTHING
            if not isinstance(part, dict) or id(part) in seen:
                continue
            seen.add(id(part))
            said |= self._known.get(id(part)) or self.own(part)
            self.spend(1 + len(said.names) // 16)
            if id(part) not in self._known:
                stack += (each for _, schemas in self._strands(part) for each in schemas)
        return said

    def _strands(self, schema: dict[str, Any]) -> Iterable[tuple[str, Sequence[Any]]]:
        """Yield the schemas of a strand with their word; None for one that nobody can see from here."""
        if MOVING_REFERENCES & schema.keys():
            raise Unread
        if "$ref" in schema:
            yield "$ref", [self.target(schema)]
        if any(_counts(word, schema[word]) for word in UNTOUCHED_WORDS & schema.keys()):
            yield "", [None]
        if isinstance(schema.get("allOf"), list):
            yield from (("allOf", [each]) for each in schema["allOf"])
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list):
                yield word, schema[word]


def own(schema: dict[str, Any]) -> Said:
    """Return what a schema says without others."""
    listed, required = schema.get("properties", {}), schema.get("required", ())
    if not isinstance(listed, Mapping) or not is_names(required) or has_structures(schema):
        return ANYTHING
    naming = [word for word in NAMING_WORDS & schema.keys() if schema[word] is not False]
    return Said(
        names=frozenset(listed).union(required),
        described=frozenset(listed),
        any_name=bool(naming),
        any_value=bool(naming) and ("patternProperties" in naming or "additionalProperties" in naming),
        items=bool(ITEM_WORDS & schema.keys()),
    )


def _counts(word: str, value: object) -> bool:
    """Return whether one of UNTOUCHED_WORDS says anything."""
    return value is not False and (bool(value) or not word.startswith("depend"))


def is_names(required: object) -> bool:
    """Return whether a value is a list of names."""
    return isinstance(required, list | tuple) and all(isinstance(name, str) for name in required)


def has_structures(schema: dict[str, Any]) -> bool:
    """Return whether whole objects or arrays are listed as values."""
    values = schema.get("enum", [])
    literals = [*(values if isinstance(values, list) else ()), schema.get("const")]
    return any(isinstance(value, dict | list) for value in literals)


def united(several: Iterable[Said]) -> Said:
    """Return what several say together."""
    said = NOTHING
    for each in several:
        said |= each
    return said


def of_others(several: Sequence[Said]) -> list[Said]:
    """Return for each of several what the others say together."""
    before, after = [NOTHING], [NOTHING]
    for first, last in zip(several, reversed(several), strict=True):
        before.append(before[-1] | first)
        after.append(after[-1] | last)
    return [before[at] | after[len(several) - 1 - at] for at in range(len(several))]
