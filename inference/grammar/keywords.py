"""Which keywords of JSON Schema a grammar can express, and what to write in place of the others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from inference.grammar.fault import join

LITERALS = ("const", "enum")
NAMES = "propertyNames"
Node = Mapping[str, Any]

COUNTS = frozenset({"minItems", "maxItems", "minLength", "maxLength", "minProperties", "maxProperties"})
BOUNDS = frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"})
CONSTRAINTS = (
    COUNTS
    | BOUNDS
    | {"type", "const", "enum", "required", "pattern", "format", "properties", "patternProperties"}
    | {"additionalProperties", "items", "additionalItems", "prefixItems", "allOf", "anyOf", "oneOf", "$ref"}
)  # all that a grammar can express; what is neither here nor below says nothing about an instance
# What says something of a schema, or holds others that are referred to, and nothing about an instance
ANNOTATIONS = frozenset(
    (
        "title description default examples deprecated readOnly writeOnly $comment $schema $id $anchor "
        "$dynamicAnchor $recursiveAnchor $vocabulary $defs definitions contentEncoding contentMediaType "
        "contentSchema"
    ).split()
)
FORMATS = frozenset("date-time date time duration email hostname ipv4 ipv6 uuid uri".split())
# The others that JSON Schema defines. What nobody defined is a remark, as its specification says
UNSUPPORTED_FORMATS = frozenset(
    (
        "idn-email idn-hostname iri iri-reference json-pointer regex relative-json-pointer uri-reference "
        "uri-template"
    ).split()
)

# Keyword -> the draft that brought it, and what to do
UNSUPPORTED: dict[str, tuple[int, str]] = {
    "not": (2013, "Say what is allowed, by `enum`, `anyOf` or `additionalProperties: false`"),
    "uniqueItems": (2013, "Leave it out, and look for repeated items in the answer"),
    "dependencies": (2013, "Write one object for each case, in `anyOf`"),
    "dependentRequired": (2019, "Write one object for each case, in `anyOf`"),
    "dependentSchemas": (2019, "Write one object for each case, in `anyOf`"),
    "if": (2018, "Write one schema for each case, in `anyOf`"),
    "then": (2018, "Write one schema for each case, in `anyOf`"),
    "else": (2018, "Write one schema for each case, in `anyOf`"),
    "contains": (2017, "Use `prefixItems`, with `minItems`"),
    "minContains": (2019, "Use `prefixItems`, with `minItems`"),
    "maxContains": (2019, "Use `prefixItems`, with `minItems`"),
    "propertyNames": (2017, "Use one `enum` or one `pattern` in it, or `additionalProperties: false`"),
    "unevaluatedProperties": (2019, "Use `additionalProperties`"),
    "unevaluatedItems": (2019, "Use `items` behind `prefixItems`"),
    "$dynamicRef": (2020, "Use `$ref`"),
    "$recursiveRef": (2019, "Use `$ref`"),
}
ABOUT = {  # the type that a keyword says something of
    **dict.fromkeys(("uniqueItems", "contains", "minContains", "maxContains", "unevaluatedItems"), "array"),
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), "object"),
    **dict.fromkeys(("propertyNames", "unevaluatedProperties"), "object"),
}
KEYWORDS = CONSTRAINTS | UNSUPPORTED.keys() | ANNOTATIONS

# Keyword -> whether it forbids nothing where it stands
NEUTRAL: dict[str, Callable[[Node], bool]] = {
    "not": lambda node: node["not"] is False or allows_nothing(node),
    "uniqueItems": lambda node: node["uniqueItems"] is False or node.get("maxItems", 2) <= 1,
    "dependencies": lambda node: not node["dependencies"],
    "dependentRequired": lambda node: not any(node["dependentRequired"].values()),
    "dependentSchemas": lambda node: not node["dependentSchemas"],
    "if": lambda node: "then" not in node and "else" not in node,
    "then": lambda node: "if" not in node or node["then"] in (True, {}),
    "else": lambda node: "if" not in node or node["else"] in (True, {}),
    "contains": lambda node: node.get("minContains") == 0 and "maxContains" not in node,
    "minContains": lambda node: "contains" not in node or node["minContains"] == 0,
    "maxContains": lambda node: "contains" not in node,
    "propertyNames": lambda node: allows_all_names(node["propertyNames"]),
    "unevaluatedProperties": lambda node: node["unevaluatedProperties"] in (True, {}),
    "unevaluatedItems": lambda node: node["unevaluatedItems"] in (True, {}),
}


def says(schema: Node) -> set[str]:
    """Return the keywords of a schema that say something of an instance."""
    return schema.keys() & KEYWORDS - ANNOTATIONS


def has_keywords(schema: Mapping[str, Any]) -> bool:
    """Return whether a schema has a word of JSON Schema, of any draft, or nothing at all.

    Without one any instance passes, by mistake: it is the properties alone, or what a schema is wrapped in.
    """
    words = schema.keys() & KEYWORDS
    if words <= {"description"} and isinstance(schema.get("schema"), Mapping):
        return False  # as OpenAI wraps one
    return bool(words) or not schema or isinstance(schema.get("id"), str)


def forbids(node: Node, keyword: str, draft: int) -> bool:
    """Return whether a keyword that grammars can't express changes what is valid."""
    if draft < UNSUPPORTED[keyword][0]:
        return False  # it came later: here it is a word without meaning
    if keyword in ABOUT and not may_be(node, ABOUT[keyword]):
        return False  # nothing that is valid here is of the type that it is about
    neutral = NEUTRAL.get(keyword)
    return neutral is None or not neutral(node)


def allows_all_names(names: Any) -> bool:
    """Return whether a schema for names is valid for every text."""
    if not isinstance(names, Mapping):
        return names is True
    words = says(names) - {"type"}
    if words == {"format"}:
        return names["format"] not in FORMATS | UNSUPPORTED_FORMATS
    return not words and may_be(names, "string")


def has_unsupported_format(node: Node) -> bool:
    """Return whether texts must have a format that is JSON Schema's own, and that no grammar is made of."""
    return node.get("format") in UNSUPPORTED_FORMATS and may_be(node, "string")


def allows_nothing(schema: Any) -> bool:
    """Return whether a schema is `false`, or zod's spelling of that: `{"not": {}}` and nothing else."""
    if not isinstance(schema, Mapping):
        return schema is False
    return schema.get("not") in ({}, True) and says(schema) == {"not"}


def may_be(node: Node, kind: str) -> bool:
    """Return whether an instance of a type could be valid by `type`."""
    types = node.get("type", kind)
    return kind in (types if isinstance(types, list) else [types])


def scalars(value: Any, at: str) -> Iterator[tuple[str, Any]]:
    """Yield what a literal consists of, names of objects apart, with the places."""
    if isinstance(value, dict):
        for key, child in value.items():
            yield from scalars(child, join(at, key))
    elif isinstance(value, list):
        for index, child in enumerate(value):
            yield from scalars(child, join(at, index))
    else:
        yield at, value
