"""Schemas as those who write them for a model mean them: narrower than JSON Schema's letter, as in TGI."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence, Set
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
# Beside `anyOf`, each speaks of the properties that all of its alternatives may have
SPEAKING_WORDS = OPENING_WORDS - {"anyOf"} | REFERENCES | {"properties"}
# An alternative with one of these may speak of any property
REACHING_WORDS = JOINING_WORDS | {"anyOf", "patternProperties"}


def as_meant(schema: Schema) -> dict[str, Any]:
    """Return a schema whose objects are objects with the properties listed, and no others.

    JSON Schema lets a schema with `properties` and without `type` be a number, and an object have any
    further properties. TGI does neither, and a model that may goes on to invent some. So such a schema
    gets the type, and `additionalProperties: false` where it doesn't speak of them and nothing else does:
    an alternative of `anyOf` may have what the words beside it speak of. What is written then is valid by
    the letter, too. A schema stays as it is if it both refers to parts of itself and joins schemas, or is
    nested too deeply.
    """
    try:
        if mentions(schema, REFERENCES) and (
            mentions(schema, JOINING_WORDS) or References(schema).are_joined(schema)
        ):
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


def closed(schema: Any, required: Sequence[Set[Any]] = ()) -> Any:
    """Return a schema whose objects have no property but those they list, wherever that is safe.

    `required` has the names that are required beside the alternatives that the schema is one of.
    """
    if not isinstance(schema, Mapping) or JOINING_WORDS & schema.keys():
        return schema
    made, required, shared = dict(schema), (*required, _required(schema)), _shared(schema)
    for key in ("properties", "$defs", "definitions"):
        if isinstance(schema.get(key), Mapping):
            open_names = shared if key == "properties" else ()
            made[key] = {
                name: each if name in open_names else closed(each) for name, each in schema[key].items()
            }
    if isinstance(schema.get("items"), Mapping):
        made["items"] = closed(schema["items"])
    if _alternatives(schema) and not _speaking(schema):
        made["anyOf"] = [closed(each, required) for each in schema["anyOf"]]
    if _lists_all(schema, required) and not OPENING_WORDS & schema.keys():
        made["additionalProperties"] = False
    return made


class References:
    """Where a schema refers to others: found once for all its parts, as it may be large and deep."""

    def __init__(self, root: Schema) -> None:
        self._root = root
        self._holders: set[int] = set()  # ids of parts with a reference at any depth
        self._referring: set[int] = set()  # ids of parts that are, or may be, what they refer to
        self._find(root)

    def are_joined(self, part: Any) -> bool:
        """Return whether, in a part, what is referred to is one object with what others speak of."""
        if isinstance(part, Mapping):
            return self._joined_by(part) or any(self.are_joined(each) for each in part.values())
        return isinstance(part, list) and any(self.are_joined(each) for each in part)

    def _find(self, part: Any) -> None:
        words = REFERENCES & part.keys() if isinstance(part, Mapping) else ()
        below = _below_all(part)
        for each in below:
            self._find(each)
        if words or any(id(each) in self._holders for each in below):
            self._holders.add(id(part))
        refers = any(isinstance(part[word], str) for word in words)
        if refers or any(id(each) in self._referring for each in _alternatives(part)):
            self._referring.add(id(part))

    def _joined_by(self, schema: Schema) -> bool:
        alternatives = _alternatives(schema)
        if id(schema) in self._referring:
            words = len(_speaking(schema)) + bool(alternatives)  # that which refers is one of them
            return words > 1 or not self._all_list(alternatives or [schema], _required(schema))
        met = [schema[key] for key in ("patternProperties", "additionalProperties") if key in schema]
        met += [schema["properties"][name] for name in _shared(schema)]
        return bool(alternatives and met) and any(id(each) in self._holders for each in (*met, *alternatives))

    def _all_list(self, alternatives: list[Any], names: Set[Any]) -> bool:
        """Return whether all that alternatives refer to lists the names, and says nothing of others."""
        referring = [each for each in alternatives if id(each) in self._referring]
        if any("anyOf" in each or not isinstance(each.get("$ref"), str) for each in referring):
            return not names
        definitions = map(self._definition, {each["$ref"] for each in referring})
        return not names or all(
            not OPENING_WORDS & each.keys() and _lists_all(each, [names]) for each in definitions
        )

    def _definition(self, reference: str) -> Schema:
        key, _, name = reference.removeprefix("#/").partition("/")
        definitions = self._root.get(key) if key in ("$defs", "definitions") else None
        definition = definitions.get(name) if isinstance(definitions, Mapping) else None
        return definition if isinstance(definition, Mapping) else {}


def _below_all(part: Any) -> Collection[Any]:
    if isinstance(part, Mapping):
        return part.values()
    return part if isinstance(part, list) else ()


def _alternatives(schema: Any) -> list[Any]:
    alternatives = schema.get("anyOf") if isinstance(schema, Mapping) else None
    return alternatives if isinstance(alternatives, list) else []


def _speaking(schema: Schema) -> list[str]:
    """Return the words that speak of properties which an alternative beside them may have."""
    return [word for word in SPEAKING_WORDS & schema.keys() if schema[word] is not False]


def _shared(schema: Schema) -> Set[str]:
    """Return the properties listed of which an alternative, too, may speak."""
    listed = schema.get("properties")
    if not isinstance(listed, Mapping):
        return frozenset()
    spoken: set[str] = set()
    for each in _alternatives(schema):
        if not isinstance(each, Mapping):
            continue
        if REACHING_WORDS & each.keys() or isinstance(each.get("additionalProperties"), Mapping):
            return listed.keys()
        if isinstance(each.get("properties"), Mapping):
            spoken |= each["properties"].keys()
    return listed.keys() & spoken


def mentions(schema: Any, words: frozenset[str]) -> bool:
    """Return whether one of the words is a keyword, or a name, anywhere in a schema."""
    if isinstance(schema, Mapping):
        return bool(words & schema.keys()) or any(mentions(each, words) for each in schema.values())
    return isinstance(schema, list) and any(mentions(each, words) for each in schema)


def _required(schema: Schema) -> Set[Any]:
    """Return the names that a schema requires; None stands for what is no name, and is never listed."""
    required = schema.get("required", ())
    if not isinstance(required, list | tuple):
        return {None}
    return {name if isinstance(name, str) else None for name in required}


def _lists_all(schema: Schema, required: Iterable[Set[Any]]) -> bool:
    listed = schema.get("properties")
    return isinstance(listed, Mapping) and all(names <= listed.keys() for names in required)


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
