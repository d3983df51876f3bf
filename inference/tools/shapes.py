"""The ways in which a schema, checked and reduced, lets arguments be given name by name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from inference.errors import ToolRefused
from inference.grammar.keywords import may_be
from inference.grammar.tree import LISTS, MAPS, SINGLES

ALTERNATIVES = 64  # ways to give arguments, of one tool
DEPTH = 32  # schemas within each other, all of the arguments as a whole
NAMES = 100_000  # looked at while schemas are joined, each with what is said of it: some 50 ms of work
# What a schema says of an object as a whole, and no order of tags can
LOST_WORDS = frozenset({"enum", "const", "minProperties", "maxProperties", "patternProperties"})
DEFINITIONS = ("$defs", "definitions")
Schema = Mapping[str, Any] | bool


@dataclass(frozen=True, slots=True)
class Shape:
    """One way to give arguments: those with names, of which some have to be there, and all others."""

    named: dict[str, tuple[Schema, ...]]
    required: frozenset[str]
    others: tuple[Schema, ...]  # False among them: there are no others


def lost_words(root: Mapping[str, Any]) -> frozenset[str]:
    """Return the words of a schema that speak of the arguments as a whole, and can't be followed."""
    return frozenset(word for part in _parts(root, root) for word in LOST_WORDS & part.keys())


def _parts(root: Mapping[str, Any], schema: Schema) -> Iterator[Mapping[str, Any]]:
    """Yield all schemas of the arguments as a whole."""
    stack, seen = [schema], set[int]()
    while stack:
        part = stack.pop()
        if isinstance(part, bool) or id(part) in seen:
            continue
        seen.add(id(part))
        yield part
        stack += [each for word in ("allOf", "anyOf", "oneOf") for each in part.get(word, ())]
        if "$ref" in part:
            stack.append(target(root, part["$ref"]))


def shapes(root: Mapping[str, Any]) -> list[Shape]:
    """Return the ways to give arguments that a schema allows; raise ToolRefused for too many."""
    return _Shapes(root).of(root, 0)


class _Shapes:
    """Finds the ways that a document's schemas allow, with a limit on the work."""

    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root = root
        self._known: dict[int, list[Shape]] = {}
        self._names = NAMES  # that may still be looked at

    def of(self, schema: Schema, depth: int) -> list[Shape]:
        """Return the ways that one of the schemas allows; each is looked at once."""
        if isinstance(schema, bool):
            return [Shape({}, frozenset(), ())] if schema else []
        if id(schema) not in self._known:
            if depth > DEPTH:
                raise too_many()
            self._known[id(schema)] = self._ways(schema, depth)
        return self._known[id(schema)]

    def _ways(self, schema: Mapping[str, Any], depth: int) -> list[Shape]:
        if not may_be(schema, "object"):
            return []
        lost = not LOST_WORDS.isdisjoint(schema)
        listed: dict[str, tuple[Schema, ...]] = {}
        listed |= {name: (each,) for name, each in schema.get("properties", {}).items()}
        others = schema.get("additionalProperties", True)
        required = frozenset(schema.get("required", ()))
        ways = [Shape(listed, required, () if lost or others is True else (others,))]
        joined = [[each] for each in schema.get("allOf", ())]
        joined += [[target(self._root, schema["$ref"])]] if "$ref" in schema else []
        joined += [schema[word] for word in ("anyOf", "oneOf") if word in schema]
        for alternatives in joined:
            more = [way for each in alternatives for way in self.of(each, depth + 1)]
            if len(ways) * len(more) > ALTERNATIVES:
                raise too_many()
            pairs = [(one, other) for one in ways for other in more]
            ways = [both for one, other in pairs if (both := self._united(one, other)) is not None]
        return [closed for way in ways if (closed := with_required(way)) is not None]

    def _united(self, one: Shape, other: Shape) -> Shape | None:
        """Return what both of two shapes allow, None for nothing.

        Hundreds of schemas that are joined, each with a name more, would be looked through again and again.
        """
        said = 1 + len(one.others) + len(other.others)  # of one name, about
        names = len(one.named) + len(other.named) + len(one.required) + len(other.required)
        self._names -= said * (1 + names)
        if self._names < 0:
            raise ToolRefused(
                "the schemas that `allOf`, `anyOf` and `oneOf` join around the arguments of a tool list too "
                "many properties together: write fewer, or put them into one `properties`"
            )
        return united(one, other)


def too_many() -> ToolRefused:
    """Return the error for a schema of which no grammar could be made."""
    return ToolRefused(
        f"there are more than {ALTERNATIVES} ways to give the arguments of a tool, by `anyOf` and `oneOf` "
        "around its properties: write fewer alternatives"
    )


def united(one: Shape, other: Shape) -> Shape | None:
    """Return what both of two shapes allow, None for nothing."""
    named: dict[str, tuple[Schema, ...]] = {}
    for name in {**one.named, **other.named}:
        schemas = one.named.get(name, one.others) + other.named.get(name, other.others)
        if False not in schemas:
            named[name] = schemas
    required = one.required | other.required
    others = one.others + other.others
    if False in others and not required <= named.keys():
        return None
    return Shape(named, required, others)


def with_required(shape: Shape) -> Shape | None:
    """Return a shape that names what it requires, and nothing that can't be there."""
    named = {name: schemas for name, schemas in shape.named.items() if False not in schemas}
    named |= dict.fromkeys(sorted(shape.required - shape.named.keys()), shape.others)
    return (
        None
        if any(False in named.get(name, (False,)) for name in shape.required)
        else Shape(named, shape.required, shape.others)
    )


def standing_alone(root: Mapping[str, Any], schemas: tuple[Schema, ...]) -> dict[str, Any]:
    """Return the schema of one value as a document, with what it refers to and the options of the whole."""
    kept: Schema = schemas[0] if len(schemas) == 1 else {"allOf": [*schemas]} if schemas else {}
    names: dict[str, str] = {}  # of definitions, by the references to them
    body = moved(kept, names)
    definitions: dict[str, Any] = {}
    while len(definitions) < len(names):
        reference = [*names][len(definitions)]
        definitions[names[reference]] = moved(target(root, reference), names)
    document = {"$schema": root["$schema"], "x-guidance": root["x-guidance"], **body}
    return {**document, "$defs": definitions} if definitions else document


def moved(schema: Any, names: dict[str, str]) -> Any:
    """Return a schema whose references lead to definitions, each of which gets a name if it has none."""
    if not isinstance(schema, Mapping):
        return {} if schema is True else {"not": {}} if schema is False else schema
    made: dict[str, Any] = {}
    for word, value in schema.items():
        if word == "$ref":
            made[word] = f"#/$defs/{names.setdefault(value, f'd{len(names)}')}"
        elif word in MAPS:
            made[word] = {name: moved(each, names) for name, each in value.items()}
        elif word in LISTS or (word == "items" and isinstance(value, list)):
            made[word] = [moved(each, names) for each in value]
        elif (word in SINGLES or word == "items") and isinstance(value, Mapping):
            made[word] = moved(value, names)
        elif word not in DEFINITIONS:
            made[word] = value
    return made


def target(root: Mapping[str, Any], reference: str) -> Any:
    """Return what a reference leads to within its document, None for nothing."""
    found: Any = root
    for step in unquote(reference[1:]).split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping):
            found = found.get(step)
        elif isinstance(found, list | tuple) and step.isdecimal() and int(step) < len(found):
            found = found[int(step)]
        else:
            return None
    return found
