"""Grammars made to crash, exhaust or stall a compiler, each within the size that a request may have."""

from __future__ import annotations

import json
from typing import Any

from inference.types import Grammar, GrammarKind

MAIL = r"^\w+([.-]?\w+)*@\w+([.-]?\w+)*(\.\w{2,%d})+$"


def objects(count: int, property_of: Any) -> dict[str, Any]:
    """Return the schema of an object of many properties."""
    return {"type": "object", "properties": {f"k{at}": property_of(at) for at in range(count)}}


def definitions(count: int, definition_of: Any, last: Any) -> dict[str, Any]:
    """Return a schema of definitions, each made of the next one's reference."""
    made = {f"a{at}": definition_of({"$ref": f"#/$defs/a{at + 1}"}) for at in range(count)}
    return {"$ref": "#/$defs/a0", "$defs": {**made, f"a{count}": last}}


def nested(depth: int, around: Any) -> Any:
    """Return a schema within itself."""
    schema: Any = {"type": "string"}
    for _ in range(depth):
        schema = around(schema)
    return schema


SCHEMAS: dict[str, Any] = {
    "a chain of references": definitions(2_900, lambda ref: ref, {"type": "null"}),
    "a chain of properties": definitions(1_500, lambda ref: {"properties": {"x": ref}}, {"type": "null"}),
    "a bomb of references": definitions(40, lambda ref: {"allOf": [ref, ref]}, {"properties": {"x": {}}}),
    "a bomb of alternatives": definitions(40, lambda ref: {"anyOf": [ref, ref]}, {"type": "integer"}),
    "a schema that is itself": {"$ref": "#"},
    "an object without end": {"type": "object", "properties": {"a": {"$ref": "#"}}, "required": ["a"]},
    "a tree of all shapes": {"anyOf": [{"type": "array", "items": {"$ref": "#"}}, {"type": "null"}]},
    "deep arrays": nested(60, lambda inner: {"items": inner}),
    "deep alternatives": nested(11, lambda inner: {"anyOf": [inner, {"type": "array", "items": inner}]}),
    "a product of alternatives": {
        "allOf": [{"anyOf": [{"properties": {f"{name}{at}": {}}} for name in "ab"]} for at in range(30)]
    },
    "8,000 properties": objects(8_000, lambda at: {}),
    "1,500 integer ranges": objects(
        1_500, lambda at: {"type": "integer", "minimum": -at, "maximum": 10**9 * at}
    ),
    "1,300 addresses": objects(1_300, lambda at: {"type": "string", "format": "uri", "maxLength": 99 + at}),
    "800 patterns": objects(800, lambda at: {"type": "string", "pattern": MAIL % (at + 3), "minLength": 6}),
    "800 exploding patterns": objects(800, lambda at: {"pattern": f"(a|b)*a(a|b){{{at + 12}}}c"}),
    "1,000 disjoint names": {
        "patternProperties": {f"^k{at}[a-z]{{1,{at + 2}}}x$": {} for at in range(1_000)}
    },
    "50 remainders": objects(50, lambda at: {"type": "integer", "multipleOf": 99_991 + at}),
    "a joint remainder": {"type": "integer", "allOf": [{"multipleOf": 9_001}, {"multipleOf": 9_002}]},
    "huge counts": {"type": "array", "items": {"type": "string"}, "minItems": 10**6, "maxItems": 10**15},
    "a long string": {"type": "string", "minLength": 10**6, "maxLength": 10**12},
    "14,000 values": {"enum": [str(at) for at in range(14_000)]},
    "4,500 objects": {"enum": [{"a": at} for at in range(4_500)]},
    "1,200 open alternatives": {"anyOf": [objects(1, lambda at, n=n: {"const": n}) for n in range(1_200)]},
    "9,000 optional properties": {
        "anyOf": [
            {"type": "object", "properties": {f"k{n}": {} for n in range(at, at + 90)}} for at in range(100)
        ]
    },
    "1,500 names beside as many references": {
        **objects(1_500, lambda at: {"$ref": f"#/$defs/k{at}", "propertyNames": {}}),
        "$defs": {f"k{at}": {"propertyNames": {}} for at in range(1_500)},
    },
    "a name of 100 kB": {"type": "object", "properties": {"x" * 100_000: {"type": "null"}}},
}
REGEXES = {
    "optional repeats": "(a?){500}a{500}",
    "nested repeats": "((a{1,50}){1,50}){1,50}",
    "a thousand times a thousand": "((a{1000}){1000}){1000}",
    "exponential states": "(.*a.{200}){3}",
    "600 alternatives in a row": "(a|b|c|d|e)?" * 680,
    "deep groups": "(" * 240 + "a" + ")" * 240,
    "too deep groups": "(" * 2_000 + "a" + ")" * 2_000,
    "letters of all languages": r"[\p{L}\p{N}]{1,5000}",
    "backtracking": "(x+x+)+y",
    "100 kB": "ab" * 50_000,
}


def grammars() -> dict[str, Grammar]:
    """Return all of them by name."""
    texts = {name: json.dumps(schema, separators=(",", ":")) for name, schema in SCHEMAS.items()}
    texts["too deep arrays"] = '{"items":' * 11_000 + "{}" + "}" * 11_000
    made = {name: Grammar(kind=GrammarKind.JSON_SCHEMA, source=text) for name, text in texts.items()}
    return made | {name: Grammar(kind=GrammarKind.REGEX, source=text) for name, text in REGEXES.items()}
