"""Schemas as those who write them for a model mean them: narrower than JSON Schema's letter, as in TGI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

Schema = Mapping[str, Any]

# Keywords below which schemas stand: by name, one after the other, alone
MAPS = frozenset({"properties", "patternProperties", "$defs", "definitions"})
LISTS = frozenset({"prefixItems", "allOf", "anyOf"})
SINGLES = frozenset({"items", "additionalProperties"})
# Each says by itself which properties there may be, or where else to look
OPENING_WORDS = frozenset(
    (
        "$ref $dynamicRef allOf anyOf oneOf not if then else patternProperties additionalProperties "
        "unevaluatedProperties dependentSchemas propertyNames minProperties maxProperties"
    ).split()
)
# What is below these is looked at together with others, so that each alone has to stay open
JOINING_WORDS = frozenset("allOf oneOf not if then else dependentSchemas unevaluatedProperties".split())
REFERENCES = frozenset({"$ref", "$dynamicRef", "$recursiveRef"})


def as_meant(schema: Schema) -> dict[str, Any]:
    """Return a schema whose objects are objects with the properties listed, and no others.

    JSON Schema lets a schema with `properties` and without `type` be a number, and an object have any
    further properties. TGI does neither, and a model that may goes on to invent some. So such a schema
    gets the type, and `additionalProperties: false` where it doesn't speak of them and nothing else does.
    What is written then is valid by the letter, too. A schema stays as it is if it both refers to parts of
    itself and joins schemas, or is nested too deeply.
    """
    try:
        if mentions(schema, REFERENCES) and (mentions(schema, JOINING_WORDS) or joins_references(schema)):
            return dict(schema)  # what is referred to may have to stay open where it is referred to
        return dict(closed(with_types(schema)))
    except RecursionError:
        return dict(schema)


def with_types(schema: Any) -> Any:
    """Return a schema in which those with `properties`, and without `type`, have the type of objects."""
    if not isinstance(schema, Mapping):
        return schema
    typed = {key: _below(key, value) for key, value in schema.items()}
    if isinstance(schema.get("properties"), Mapping):
        typed.setdefault("type", "object")
    return typed


def closed(schema: Any) -> Any:
    """Return a schema whose objects have no property but those they list, wherever that is safe."""
    if not isinstance(schema, Mapping) or JOINING_WORDS & schema.keys():
        return schema
    made = dict(schema)
    for key in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(key), Mapping):
            made[key] = {name: closed(each) for name, each in schema[key].items()}
    if isinstance(schema.get("items"), Mapping):
        made["items"] = closed(schema["items"])
    if isinstance(schema.get("anyOf"), list) and "properties" not in schema:
        made["anyOf"] = [closed(each) for each in schema["anyOf"]]
    if _lists_all(schema) and not OPENING_WORDS & schema.keys():
        made["additionalProperties"] = False
    return made


def joins_references(schema: Any) -> bool:
    """Return whether a reference stands beside properties, which then are those of one object."""
    if isinstance(schema, Mapping):
        joined = isinstance(schema.get("$ref"), str) and isinstance(schema.get("properties"), Mapping)
        return joined or any(joins_references(each) for each in schema.values())
    return isinstance(schema, list) and any(joins_references(each) for each in schema)


def mentions(schema: Any, words: frozenset[str]) -> bool:
    """Return whether one of the words is a keyword, or a name, anywhere in a schema."""
    if isinstance(schema, Mapping):
        return bool(words & schema.keys()) or any(mentions(each, words) for each in schema.values())
    return isinstance(schema, list) and any(mentions(each, words) for each in schema)


def _lists_all(schema: Schema) -> bool:
    listed, required = schema.get("properties"), schema.get("required", ())
    return (
        isinstance(listed, Mapping)
        and isinstance(required, list | tuple)
        and all(isinstance(name, str) and name in listed for name in required)
    )


def _below(key: str, value: Any) -> Any:
    """Return what a keyword holds, its schemas with their types."""
    if key in MAPS and isinstance(value, Mapping):
        return {name: with_types(schema) for name, schema in value.items()}
    if key in (LISTS | SINGLES) and isinstance(value, list):
        return [with_types(schema) for schema in value]
    if key == "oneOf" and isinstance(value, list) and all(map(_is_object, value)):
        return [{"type": "object", **schema} for schema in value]
    return with_types(value) if key in SINGLES else value


def _is_object(schema: Any) -> bool:
    """Return whether a schema is meant for objects: of several, none then is an alternative for others."""
    return isinstance(schema, Mapping) and (
        schema.get("type") == "object"
        or ("type" not in schema and isinstance(schema.get("properties"), Mapping))
    )
