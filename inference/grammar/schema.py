"""JSON Schemas as grammars: checked, reduced to what a grammar expresses, with a policy for white space.

Generated JSON has at most one space at each place where JSON allows white space, as in TGI, so that
a model can't go on forever without saying anything; both `{"a":1}` and `{"a": 1}` can be written.
Properties come in the order of the schema, and after them those that it doesn't list. A schema
`true` or `{}` is any JSON value; formats are enforced.

`\\u` escapes are possible, for control characters only, where no object is open for names besides
its own: there llguidance would let a model write `"f\\u006fo"` for "foo", a second time and as
anything.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any
from urllib.parse import quote

from inference.errors import Member
from inference.grammar.alternatives import are_told_apart
from inference.grammar.checks import (
    check_escapes,
    check_names,
    check_place,
    dialect,
    has_names,
    is_neutral_count,
    is_open,
)
from inference.grammar.fault import GrammarFault, check_source, excerpt, join
from inference.grammar.finite import check_finite
from inference.grammar.keywords import CONSTRAINTS, COUNTS, FORMATS, allows_nothing, may_be
from inference.grammar.names import list_names
from inference.grammar.numbers import check_multiples
from inference.grammar.patterns import without_null
from inference.grammar.tree import LISTS, MAPS, SINGLES, Place, Schema, SchemaTree, check_size, lookup, read
from inference.grammar.words import list_patterns
from inference.grammar_limits import GrammarLimits

LIMITS = GrammarLimits()
JSON_OPTIONS: Mapping[str, Any] = MappingProxyType(
    {"whitespace_pattern": " ", "json_allowed_escapes": 'nrbtf\\"'}
)
UNICODE_OPTIONS: Mapping[str, Any] = MappingProxyType({**JSON_OPTIONS, "json_allowed_escapes": 'nrbtf\\"u'})


def check_schema(schema: object, member: str, limits: GrammarLimits = LIMITS) -> None:
    """Raise GrammarRefused for a schema that can't be a grammar, as far as that shows without compiling it.

    `member` is where the request has it, for the message.
    """
    try:
        prepare(write(schema), limits)
    except GrammarFault as fault:
        raise fault.refusal(Member(member)) from None


def check_given(schema: object, limits: GrammarLimits = LIMITS) -> None:
    """Raise GrammarFault for a schema so large that it may not even be read as it is meant."""
    check_size(schema, limits)
    check_source(write(schema), limits.source_bytes)


def embedded_json(schema: object, limits: GrammarLimits = LIMITS) -> str:
    """Return what stands behind `%json` in a Lark grammar for a schema that passed `check_schema`."""
    return prepare(write(schema), limits)[1]


def prepare(text: str, limits: GrammarLimits) -> tuple[SchemaTree, str]:
    """Return a schema, and what llguidance compiles in its place; raise GrammarFault."""
    root = read(text, limits)
    try:
        return _prepared(root, limits)
    except (TypeError, AttributeError, KeyError, ValueError) as error:
        # Meta-schemas don't look into keywords that their drafts don't know, and so let malformed ones pass
        raise GrammarFault(f"it is no JSON Schema: {excerpt(str(error))}. Mend its keywords") from error


def _prepared(root: Schema, limits: GrammarLimits) -> tuple[SchemaTree, str]:
    tree = SchemaTree(root, dialect(root), limits)
    for place in tree.places:
        check_place(place, tree, limits)
    tree = list_names(tree)
    check_names(tree)
    tree = list_patterns(tree)
    check_multiples(tree, limits)
    check_finite(tree)
    options = JSON_OPTIONS if has_open_objects(tree) else UNICODE_OPTIONS
    if options is JSON_OPTIONS:
        for place in tree.places:
            check_escapes(place)
    guidance = {**options, "coerce_one_of": True} if are_told_apart(tree) else dict(options)
    return tree, write({**reduced(tree, limits), "x-guidance": guidance})


def write(schema: object) -> str:
    """Return a schema as JSON text; raise GrammarFault for what no JSON text can hold."""
    try:
        text = json.dumps(schema, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        text.encode()
    except UnicodeEncodeError:
        raise GrammarFault("it holds half a surrogate pair. Send UTF-8 text") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise GrammarFault(f"it is not JSON: {excerpt(str(error))}") from None
    return text


def has_open_objects(tree: SchemaTree) -> bool:
    """Return whether an object has names of its own and may have others."""
    return any(
        isinstance(place.schema, dict)
        and may_be(place.schema, "object")
        and has_names(place.schema)
        and is_open(place.schema)
        for place in tree.places
    )


def reduced(tree: SchemaTree, limits: GrammarLimits) -> dict[str, Any]:
    """Return the schema with nothing but the constraints that take part.

    llguidance thus sees only what was checked: no titles, no options of its own in a client's
    schema, and no identifiers, by which a reference could mean something else to it.
    """
    root: dict[str, Any] = {"$schema": tree.dialect}
    made: dict[str, Any] = {}
    for place in tree.places:
        if isinstance(place.schema, bool) or allows_nothing(place.schema):
            made[place.pointer] = place.schema is True
        else:
            made[place.pointer] = _constraints(place.pointer, place.schema, tree, limits)
    if isinstance(tree.root, bool):
        return root
    root |= made[""]
    for pointer in sorted(made, key=lambda pointer: pointer.count("/")):  # outer schemas first
        if pointer:
            _put(root, pointer, made[pointer])
    for pointer, schema in made.items():
        if isinstance(schema, dict) and "patternProperties" in schema:
            at = join(pointer, "patternProperties")
            named = schema["patternProperties"].items()
            renamed = {without_null(pattern, join(at, pattern)): each for pattern, each in named}
            (schema if pointer else root)["patternProperties"] = renamed
    return root


def _constraints(at: str, schema: dict[str, Any], tree: SchemaTree, limits: GrammarLimits) -> dict[str, Any]:
    """Return a schema's own constraints, with room in the same order for the schemas below it."""
    kept: dict[str, Any] = {}
    for key, value in schema.items():
        if key not in CONSTRAINTS or (key == "format" and value not in FORMATS):
            continue
        if key in ("minProperties", "maxProperties") and is_neutral_count(schema, key):
            continue
        if key == "$ref":
            kept[key] = "#" + quote(tree.target(at, schema), safe="/~!$&'()*+,;=:@?")
        elif key == "pattern":
            kept[key] = without_null(value, join(at, key))
        elif key in COUNTS:
            kept[key] = min(int(value), limits.count)
        elif key in MAPS:
            kept[key] = dict.fromkeys(value)
        elif key in LISTS or (key == "items" and isinstance(value, list)):
            kept[key] = [None] * len(value)
        else:
            kept[key] = None if key in SINGLES or key == "items" else value
    return kept


def _put(root: dict[str, Any], pointer: str, schema: Any) -> None:
    *above, last = (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/")[1:])
    inner: Any = root
    for key in above:
        inner = inner[int(key)] if isinstance(inner, list) else inner.setdefault(key, {})
    if isinstance(inner, list):
        inner[int(last)] = schema
    else:
        inner[last] = schema


def standalone(tree: SchemaTree, place: Place, limits: GrammarLimits) -> str:
    """Return one of a tree's schemas as a document of its own, for references to the definitions only."""
    whole = reduced(tree, limits)
    found, _ = lookup(whole, place.pointer, tree.identifier)
    schema = found if isinstance(found, dict) else {}  # below a pattern that was rewritten it isn't found
    shared = {key: whole[key] for key in ("$schema", "$defs", "definitions") if key in whole}
    return write({**shared, **schema, "x-guidance": dict(JSON_OPTIONS)})
