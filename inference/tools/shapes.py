"""The ways in which a schema, checked and reduced, lets arguments be given name by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote

from inference.errors import ToolRefused
from inference.grammar.fault import join
from inference.grammar.tree import LISTS, MAPS, SINGLES

ALTERNATIVES = 64  # ways to give arguments, of one tool
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


def shapes(root: Mapping[str, Any], schema: Schema | None = None) -> list[Shape]:
    """Return the ways to give arguments that a schema allows; raise ToolRefused for too many."""
    schema = root if schema is None else schema
    if isinstance(schema, bool):
        return [Shape({}, frozenset(), ())] if schema else []
    if "object" not in (
        schema["type"] if isinstance(schema.get("type"), list) else [schema.get("type", "object")]
    ):
        return []
    lost = not LOST_WORDS.isdisjoint(schema)
    listed: dict[str, tuple[Schema, ...]] = {
        name: (each,) for name, each in schema.get("properties", {}).items()
    }
    others = () if lost else (schema.get("additionalProperties", True),)
    ways = [Shape(listed, frozenset(schema.get("required", ())), tuple(e for e in others if e is not True))]
    joined = [[each] for each in schema.get("allOf", ())]
    joined += [[target(root, schema["$ref"])]] if "$ref" in schema else []
    joined += [schema[word] for word in ("anyOf", "oneOf") if word in schema]
    for alternatives in joined:
        more = [way for each in alternatives for way in shapes(root, each)]
        if len(ways) * len(more) > ALTERNATIVES:
            raise ToolRefused(
                f"there are more than {ALTERNATIVES} ways to give the arguments of a tool, by `anyOf` and "
                "`oneOf` around its properties: write fewer alternatives"
            )
        ways = [both for one in ways for other in more if (both := united(one, other)) is not None]
    return [closed for way in ways if (closed := with_required(way)) is not None]


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
    body = {} if kept is True else {"not": {}} if kept is False else dict(kept)
    document = {"$schema": root["$schema"], "x-guidance": root["x-guidance"]}
    if '"$ref"' not in json.dumps(body):
        return {**document, **body}
    whole = {word: value for word, value in root.items() if word not in document}
    return {**document, **moved(body), "$defs": {"arguments": moved(whole)}}


def moved(schema: Any) -> Any:
    """Return a schema whose references lead to where the whole is a definition."""
    if not isinstance(schema, dict):
        return schema
    made: dict[str, Any] = {}
    for word, value in schema.items():
        if word == "$ref":
            made[word] = "#" + join("", "$defs", "arguments") + value[1:]
        elif word in MAPS or word in DEFINITIONS:
            made[word] = {name: moved(each) for name, each in value.items()}
        elif word in LISTS or (word == "items" and isinstance(value, list)):
            made[word] = [moved(each) for each in value]
        else:
            made[word] = moved(value) if word in SINGLES or word == "items" else value
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
