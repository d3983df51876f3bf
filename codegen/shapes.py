"""A schema as what it takes: alternatives of one JSON type each, whatever keywords it was written with.

References are followed, `nullable` is null beside the rest, `allOf` is merged, an `enum` is split by type,
and a union within a union is one union. Two schemas that take the same are mostly the same shapes then,
wherever their parts stand; what can't be brought into this form is kept in `Shape.texts`, as it is written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import reduce
from itertools import product
from typing import Any

Node = Mapping[str, Any]
Bound = tuple[float, bool]  # its value, and whether it is left out itself

KINDS = ("null", "boolean", "number", "string", "array", "object")
LOWER = {"minimum": "exclusiveMinimum", "minLength": "", "minItems": "", "minProperties": ""}
UPPER = {"maximum": "exclusiveMaximum", "maxLength": "", "maxItems": "", "maxProperties": ""}
TEXTS = ("pattern", "multipleOf", "uniqueItems", "not")
MEASURES = {"Length": "string", "Items": "array", "Properties": "object"}
DEPTH = 32  # of references that lead to references


@dataclass(frozen=True, slots=True)
class Shape:
    """One alternative: values of one type."""

    kind: str
    name: str = ""  # of the component schema that it was found in
    whole: bool = False  # numbers: integers only
    values: tuple[Any, ...] | None = None  # the only ones, if they are counted up
    bounds: Mapping[str, Bound] = field(default_factory=dict)
    texts: Mapping[str, str] = field(default_factory=dict)  # keywords to be compared as written
    most: int | None = None  # `x-most`, which alternatives of a union have each for itself
    items: Node = field(default_factory=dict)
    members: Mapping[str, Node] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    rest: Node | None = field(default_factory=dict)  # what other members hold; None: there are none

    @property
    def free(self) -> bool:
        """Return whether it takes every value of its type."""
        limited = self.whole or self.values is not None or self.bounds or self.texts
        limited = limited or self.most is not None or self.items
        return not (limited or self.members or self.required or self.rest != {})

    def takes(self, value: Any) -> bool:
        """Return whether a scalar is one of its values; what stands in `texts` isn't looked at."""
        if kind_of(value) != self.kind or (self.whole and not isinstance(value, int)):
            return False
        if self.values is not None:
            return any(same(value, known) for known in self.values)
        size = value if self.kind == "number" else len(value)
        return all(_within(key, bound, size) for key, bound in self.bounds.items())


class Shapes:
    """The shapes of one document's schemas; `schemas` are those that references name.

    Branches of `oneOf` that overlap are marked in `texts`, unless it is read `loose`, as `anyOf`.
    """

    def __init__(self, schemas: Node, loose: bool = False) -> None:
        self.schemas, self.loose = schemas, loose
        self._known: dict[int, tuple[Node, tuple[Shape, ...]]] = {}  # the node keeps its id from being reused

    def of(self, schema: Node) -> tuple[Shape, ...]:
        """Return what a schema takes."""
        if id(schema) not in self._known:
            self._known[id(schema)] = schema, tuple(_simplified(self._of(schema, DEPTH)))
        return self._known[id(schema)][1]

    def told(self, schema: Node) -> Node:
        """Return a schema's keywords with those of what it refers to."""
        told: dict[str, Any] = dict(schema)
        for _ in range(DEPTH):
            if "$ref" not in schema:
                break
            schema = self._target(schema)
            told = {**schema, **told}
        return told

    def _of(self, schema: Node, depth: int) -> Iterator[Shape]:
        if depth == 0:
            raise ValueError(f"a reference leads to itself: {schema}")
        if "$ref" in schema:
            name = schema["$ref"].rsplit("/", 1)[-1]
            for shape in self._of(self._target(schema), depth - 1):
                yield shape if shape.name else replace(shape, name=name)
        else:
            yield from self._written(schema, depth)
        if schema.get("nullable"):
            yield NULL

    def _written(self, schema: Node, depth: int) -> Iterator[Shape]:
        parts = [list(_plain(schema))]
        parts += [list(self._of(part, depth - 1)) for part in schema.get("allOf", ())]
        for union in ("anyOf", "oneOf"):
            if union in schema:
                branches = [list(self._of(branch, depth - 1)) for branch in schema[union]]
                shapes = [shape for branch in branches for shape in branch]
                exclusive = union == "oneOf" and not self.loose and _overlap(branches)
                parts.append([_marked(shape, schema) for shape in shapes] if exclusive else shapes)
        for combination in product(*parts):
            yield from reduce(_crossed, combination[1:], [combination[0]])

    def _target(self, schema: Node) -> Node:
        target: Node = self.schemas[schema["$ref"].rsplit("/", 1)[-1]]
        return target


def kind_of(value: Any) -> str:
    """Return the JSON type of a value; integers are numbers."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "boolean"
    kinds: tuple[tuple[Any, str], ...] = ((int | float, "number"), (str, "string"), (list, "array"))
    return next((kind for types, kind in kinds if isinstance(value, types)), "object")


def same(one: Any, other: Any) -> bool:
    """Return whether two values are the same in JSON, where true isn't 1."""
    return kind_of(one) == kind_of(other) and one == other


def tighter(key: str, one: Bound | None, other: Bound | None) -> bool:
    """Return whether a bound `one` leaves out something that `other` takes."""
    if one is None or one == other:
        return False
    if other is None:
        return True
    sign = 1 if key in LOWER else -1
    return (sign * one[0], one[1]) > (sign * other[0], other[1])


NULL = Shape("null", values=(None,))


def _plain(schema: Node) -> Iterator[Shape]:
    """Yield the alternatives of a schema without what refers to or joins others."""
    kinds = schema.get("type", [*KINDS])
    for kind in [kinds] if isinstance(kinds, str) else kinds:
        shape = _typed("number" if kind == "integer" else kind, schema)
        if kind == "integer":
            shape = replace(shape, whole=True)
        if "enum" in schema:
            shape = replace(
                shape, values=tuple(value for value in schema["enum"] if kind_of(value) == shape.kind)
            )
        elif kind in ("null", "boolean"):
            shape = replace(shape, values=(None,) if kind == "null" else (False, True))
        if shape.values != ():
            yield shape


def _typed(kind: str, schema: Node) -> Shape:
    bounds = {
        key: (schema[key], bool(schema.get(exclusive, False)))
        for key, exclusive in (LOWER | UPPER).items()
        if key in schema and MEASURES.get(key[3:], "number") == kind
    }
    texts = {key: json.dumps(schema[key], sort_keys=True) for key in TEXTS if schema.get(key)}
    if kind == "array":
        return Shape(
            kind, bounds=bounds, texts=texts, most=schema.get("x-most"), items=schema.get("items", {})
        )
    if kind != "object":
        return Shape(kind, bounds=bounds, texts=texts)
    rest = schema.get("additionalProperties", True)
    rest = ({} if rest else None) if isinstance(rest, bool) else rest
    required = frozenset(schema.get("required", ()))
    return Shape(
        kind,
        bounds=bounds,
        texts=texts,
        most=schema.get("x-most"),
        members={**{name: rest or {} for name in sorted(required)}, **schema.get("properties", {})},
        required=required,
        rest=rest,
    )


def _crossed(shapes: Iterable[Shape], other: Shape) -> list[Shape]:
    """Return what is both: one of `shapes`, and the other."""
    both = [_both(shape, other) for shape in shapes if shape.kind == other.kind]
    return [shape for shape in both if shape.values != ()]


def _both(one: Shape, other: Shape) -> Shape:
    if one.free or other.free:
        limited, free = (other, one) if one.free else (one, other)
        return replace(limited, name=limited.name or free.name)
    values = one.values if other.values is None else other.values
    return Shape(
        one.kind,
        name=one.name or other.name,
        whole=one.whole or other.whole,
        values=None if values is None else tuple(filter(one.takes, filter(other.takes, values))),
        bounds=_joined(one.bounds, other.bounds, lambda key, a, b: a if tighter(key, a, b) else b),
        texts=_joined(one.texts, other.texts, lambda _, a, b: a if a == b else " and ".join(sorted({a, b}))),
        most=min((most for most in (one.most, other.most) if most is not None), default=None),
        items=_all_of(one.items, other.items),
        members=_joined(one.members, other.members, lambda _, a, b: _all_of(a, b)),
        required=one.required | other.required,
        rest=None if one.rest is None or other.rest is None else _all_of(one.rest, other.rest),
    )


def _joined(one: Mapping[str, Any], other: Mapping[str, Any], both: Callable[..., Any]) -> dict[str, Any]:
    shared = {key: both(key, one[key], other[key]) for key in one if key in other}
    return {**one, **other, **shared}


def _all_of(one: Node, other: Node) -> Node:
    if not one or not other or one == other:
        return one or other
    return {"allOf": [one, other]}


def _simplified(shapes: Iterable[Shape]) -> Iterator[Shape]:
    """Yield counted values of a type together, and no scalars that another shape includes."""
    found = list(shapes)
    for kind in KINDS:
        alike = [shape for shape in found if shape.kind == kind]
        free = [shape for shape in alike if shape.free]
        counted = [shape for shape in alike if shape.values is not None and not shape.texts]
        if free and kind not in ("array", "object"):  # in these, what is named has a meaning still
            yield free[0]
            continue
        if counted:
            values = [value for shape in counted for value in shape.values or ()]
            yield replace(counted[0], values=tuple(_distinct(values)))
        yield from (shape for shape in alike if shape not in counted)


def _distinct(values: Iterable[Any]) -> Iterator[Any]:
    found: list[Any] = []
    for value in values:
        if not any(same(value, known) for known in found):
            found.append(value)
            yield value


def _overlap(branches: list[list[Shape]]) -> bool:
    """Return whether a value may be of two branches, which `oneOf` refuses."""
    seen: list[Shape] = []
    for branch in branches:
        if any(_meet(shape, other) for shape in branch for other in seen):
            return True
        seen += branch
    return False


def _meet(one: Shape, other: Shape) -> bool:
    if one.kind != other.kind:
        return False
    if one.values is not None and other.values is not None:
        return any(other.takes(value) for value in one.values)
    return not any(
        _words(one.members[name]).isdisjoint(_words(other.members[name]))
        for name in one.required & other.required & one.members.keys() & other.members.keys()
        if _words(one.members[name]) and _words(other.members[name])
    )


def _words(schema: Node) -> set[str]:
    """Return the words that a member is one of, if it is a tag."""
    return {value for value in schema.get("enum", ()) if isinstance(value, str)}


def _marked(shape: Shape, schema: Node) -> Shape:
    return replace(shape, texts={**shape.texts, "oneOf": json.dumps(schema["oneOf"], sort_keys=True)})


def _within(key: str, bound: Bound, size: float) -> bool:
    limit, exclusive = bound
    inside = size > limit if key in LOWER else size < limit
    return inside or (size == limit and not exclusive)
