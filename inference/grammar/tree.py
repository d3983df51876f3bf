"""A JSON Schema as the schemas it consists of, with their places and the references between them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from urllib.parse import unquote

from inference.grammar.fault import GrammarFault, check_source, excerpt, join
from inference.grammar_limits import GrammarLimits

Schema = dict[str, Any] | bool
Path = tuple[()] | tuple[Any, str | int]  # what is above, and the key below it; a name is held once so

MAPS = frozenset({"properties", "patternProperties"})  # of schemas
LISTS = frozenset({"allOf", "anyOf", "oneOf", "prefixItems"})
SINGLES = frozenset({"additionalProperties", "additionalItems"})
DRAFTS = {  # year by which `$schema` is known; later drafts know more keywords
    "http://json-schema.org/draft-04/schema": 2013,
    "http://json-schema.org/draft-06/schema": 2017,
    "http://json-schema.org/draft-07/schema": 2018,
    "https://json-schema.org/draft/2019-09/schema": 2019,
    "https://json-schema.org/draft/2020-12/schema": 2020,
}
LATEST = "https://json-schema.org/draft/2020-12/schema"
INDEX = re.compile("[0-9]{1,9}")  # of an array's item


@dataclass(frozen=True, slots=True)
class Place:
    """A schema that takes part, and where it stands."""

    pointer: str
    schema: Schema
    depth: int  # schemas around it, references followed


class SchemaTree:
    """A schema document that is this object's own; what is never referred to takes no part."""

    def __init__(self, root: Schema, dialect: str, limits: GrammarLimits) -> None:
        self.limits = limits
        self.root = root
        self.dialect = dialect
        self.draft = DRAFTS[dialect]
        self.identifier = "id" if self.draft == 2013 else "$id"
        self._id = str(root.get(self.identifier, "")).rstrip("#") if isinstance(root, dict) else ""

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The schemas that take part, each once, in the order in which a compiler meets them.

        Raises GrammarFault for references that lead nowhere, and for too many schemas.
        """
        return tuple(self._walk())

    @cached_property
    def has_references(self) -> bool:
        """Whether any schema refers to another."""
        return any(isinstance(place.schema, dict) and "$ref" in place.schema for place in self.places)

    def _walk(self) -> Iterator[Place]:
        stack = [Place("", self.root, 0)]
        seen = set()
        characters = 0
        while stack:
            place = stack.pop()
            if place.pointer in seen:
                continue
            seen.add(place.pointer)
            if len(seen) > self.limits.schemas:
                raise GrammarFault(
                    f"it must have <= {self.limits.schemas} schemas within it, and this has more. Shorten it"
                )
            yield place
            below = []
            for child in self.children(place) if isinstance(place.schema, dict) else ():
                characters += len(child.pointer)
                if characters > self.limits.pointer_chars:
                    raise GrammarFault("the names around its schemas are too long. Shorten them")
                below.append(child)
            stack += reversed(below)

    def children(self, place: Place) -> Iterator[Place]:
        """Yield the schemas directly below an object schema, and those that it refers to."""
        assert isinstance(place.schema, dict)
        for key, value in place.schema.items():
            if key == "$ref":
                pointer, target = self.resolve(place)
                yield Place(pointer, target, place.depth + 1)
                continue
            for keys, child in below(key, value):
                if isinstance(child, (dict, bool)):
                    yield Place(join(place.pointer, key, *keys), child, place.depth + 1)

    def resolve(self, place: Place) -> tuple[str, Schema]:
        """Return pointer and schema of what a schema refers to; raise GrammarFault."""
        assert isinstance(place.schema, dict)
        ref = place.schema["$ref"]
        at = join(place.pointer, "$ref")
        if not isinstance(ref, str):
            raise GrammarFault("a reference is a text, such as `#/$defs/name`", at)
        document, _, fragment = ref.partition("#")
        if document not in ("", self._id):
            raise GrammarFault(
                f"it refers to {excerpt(ref)!r}, outside of the schema, and nothing is fetched. "
                "Copy what it refers to into `$defs`, and refer to `#/$defs/...`",
                at,
            )
        pointer = unquote(fragment)
        if pointer and not pointer.startswith("/"):
            pointer = pointer_of(self._anchors[pointer]) if pointer in self._anchors else "/"
        target, outer = lookup(self.root, pointer, self.identifier)
        if not isinstance(target, (dict, bool)) or outer:
            raise GrammarFault(
                f"it refers to {excerpt(ref)!r}, where this document has no schema. Refer to `#/$defs/...`",
                at,
            )
        return pointer, target

    def target(self, pointer: str, schema: dict[str, Any]) -> str:
        """Return the pointer of what the schema at `pointer` refers to; raise GrammarFault."""
        return self.resolve(Place(pointer, schema, 0))[0]

    @cached_property
    def _anchors(self) -> dict[str, Path]:
        return dict(find_anchors(self.root))


def below(key: str, value: Any) -> Iterator[tuple[tuple[str | int, ...], Any]]:
    """Yield the schemas that a keyword holds, with their place below it."""
    if key in SINGLES or (key == "items" and not isinstance(value, list)):
        yield (), value
    elif key in MAPS:
        yield from (((name,), schema) for name, schema in value.items())
    elif key in LISTS or key == "items":
        yield from (((at,), schema) for at, schema in enumerate(value))


def lookup(root: Any, pointer: str, identifier: str) -> tuple[Any, bool]:
    """Return what a JSON pointer points to, None for nothing, and whether that is within another document.

    A schema with an `identifier` of its own, below the root, is a document of its own.
    """
    value, within = root, False
    for part in pointer.split("/")[1:]:
        if value is not root and isinstance(value, dict):
            within = within or isinstance(value.get(identifier), str)
        key = part.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict):
            value = value.get(key)
        elif isinstance(value, list) and INDEX.fullmatch(key) and int(key) < len(value):
            value = value[int(key)]
        else:
            return None, within
    return value, within


def find_anchors(root: Any) -> Iterator[tuple[str, Path]]:
    """Yield the names that `$anchor` gives to places, with their ways from the root."""
    stack: list[tuple[Path, Any]] = [((), root)]
    while stack:
        path, value = stack.pop()
        children: Iterable[tuple[str | int, Any]] = ()
        if isinstance(value, dict):
            if isinstance(value.get("$anchor"), str):
                yield value["$anchor"], path
            children = value.items()
        elif isinstance(value, list):
            children = enumerate(value)
        stack += (((path, key), child) for key, child in children if isinstance(child, dict | list))


def pointer_of(path: Path) -> str:
    """Return the JSON pointer of a place that a way leads to."""
    keys = []
    while path:
        path, key = path
        keys.append(key)
    return join("", *reversed(keys))


def read(text: str, limits: GrammarLimits) -> Schema:
    """Return the schema that a JSON text holds, within the limits of its size; raise GrammarFault."""
    check_source(text, limits.source_bytes)
    try:
        root = json.loads(text, parse_constant=_refuse_constant)
    except RecursionError:
        raise _too_deep(limits) from None
    except ValueError as error:
        raise GrammarFault(f"it is not JSON: {excerpt(str(error))}") from None
    if not isinstance(root, (dict, bool)):
        raise GrammarFault(f"a JSON Schema is an object or a boolean. Given: {excerpt(repr(root))}")
    check_size(root, limits)
    return root


def check_size(root: object, limits: GrammarLimits) -> None:
    """Raise GrammarFault for a schema that is nested too deep, or has too many values."""
    level: list[Any] = [root]
    depth = values = 0
    while level:
        values += len(level)
        if values > limits.values:
            raise GrammarFault(
                f"a schema must have <= {limits.values} JSON values, and this has more. Shorten it"
            )
        inner: list[Any] = []
        for value in level:
            if isinstance(value, Mapping):
                inner += value.values()
            elif isinstance(value, list | tuple):
                inner += value
        depth += bool(inner)
        if depth > limits.nesting:
            raise _too_deep(limits)
        level = inner


def _too_deep(limits: GrammarLimits) -> GrammarFault:
    return GrammarFault(
        f"a schema must be nested <= {limits.nesting} deep, and this is deeper. "
        "Move parts of it into `$defs`, and refer to them"
    )


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON")
