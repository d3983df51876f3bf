"""Instances of a schema that together show every branch of it: each property, each alternative, each bound.

Not random and not complete: one instance per thing that can vary, the rest at its simplest. That is what
comparing two documents needs, and it always gives the same instances.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any

Schema = Mapping[str, Any]

DEPTH = 24  # of references followed; deeper only recursion goes
ANYTHING: tuple[Any, ...] = ("text", 1, True, {"a": 1}, ["text"])


class Samples:
    """The instances of one Draft 4 schema with its own definitions."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema
        self.definitions: Schema = schema.get("definitions", {})

    def __iter__(self) -> Iterator[Any]:
        return self._of(self.schema, DEPTH)

    def _of(self, schema: Schema, depth: int) -> Iterator[Any]:
        if depth == 0:
            return
        if "$ref" in schema:
            yield from self._of(self.definitions[schema["$ref"].rsplit("/", 1)[-1]], depth - 1)
        elif "enum" in schema:
            yield from schema["enum"]
        elif "allOf" in schema:
            yield from self._all(schema["allOf"], depth)
        elif "anyOf" in schema or "oneOf" in schema:
            for branch in (*schema.get("anyOf", ()), *schema.get("oneOf", ())):
                yield from self._of(branch, depth)
        else:
            yield from self._typed(schema, depth)

    def _typed(self, schema: Schema, depth: int) -> Iterator[Any]:
        kinds = schema.get("type", "object" if "properties" in schema else "anything")
        for kind in [kinds] if isinstance(kinds, str) else kinds:
            match kind:
                case "object":
                    yield from self._objects(schema, depth)
                case "array":
                    yield from self._arrays(schema, depth)
                case "integer" | "number":
                    yield from _numbers(schema, kind)
                case "string":
                    yield from ("text",) if schema.get("minLength") else ("text", "")
                case "boolean":
                    yield from (True, False)
                case "null":
                    yield None
                case _:
                    yield from ANYTHING

    def _objects(self, schema: Schema, depth: int) -> Iterator[Any]:
        properties: Schema = schema.get("properties", {})
        simplest = {name: self._first(properties.get(name, {}), depth) for name in schema.get("required", ())}
        yield simplest
        for name, member in properties.items():
            yield from ({**simplest, name: value} for value in self._of(member, depth))
        if isinstance(schema.get("additionalProperties"), Mapping):
            yield from (
                {**simplest, "50256": value} for value in self._of(schema["additionalProperties"], depth)
            )

    def _arrays(self, schema: Schema, depth: int) -> Iterator[Any]:
        if not schema.get("minItems"):
            yield []
        yield from ([value] for value in self._of(schema.get("items", {}), depth))

    def _all(self, parts: list[Schema], depth: int) -> Iterator[Any]:
        """Merge objects: one part varies while the others are at their simplest."""
        if len(parts) == 1:
            yield from self._of(parts[0], depth)
            return
        simplest = [self._first(part, depth) for part in parts]
        for place, part in enumerate(parts):
            for value in self._of(part, depth):
                merged: dict[str, Any] = {}
                for other in (*simplest[:place], *simplest[place + 1 :], value):
                    merged.update(other)
                yield merged

    def _first(self, schema: Schema, depth: int) -> Any:
        return next(islice(self._of(schema, depth), 1), None)


def _numbers(schema: Schema, kind: str) -> Iterator[Any]:
    low, high = schema.get("minimum"), schema.get("maximum")
    inner = 1 if kind == "integer" else 0.5
    beyond = (low is not None and inner < low) or (high is not None and inner > high)
    candidates = [*(() if beyond else (inner,)), *(bound for bound in (low, high) if bound is not None)]
    if low is None and high is None:
        candidates.append(0)
    for value in dict.fromkeys(candidates):
        if not (schema.get("exclusiveMinimum") and value == low) and not (
            schema.get("exclusiveMaximum") and value == high
        ):
            yield value
