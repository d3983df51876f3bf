"""What llguidance would refuse without saying where, and what it would get wrong without saying so."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from typing import Any

import jsonschema_rs

from inference.grammar.fault import GrammarFault, excerpt, join
from inference.grammar.keywords import (
    FORMATS,
    LITERALS,
    NAMES,
    UNSUPPORTED,
    Node,
    forbids,
    has_unsupported_format,
    may_be,
    scalars,
)
from inference.grammar.numbers import check_numbers
from inference.grammar.patterns import pieces, without_null
from inference.grammar.tree import DRAFTS, LATEST, Place, Schema, SchemaTree
from inference.grammar_limits import GrammarLimits

DEFAULTS = (LATEST, "http://json-schema.org/draft-07/schema", "http://json-schema.org/draft-04/schema")
BROUGHT = {"const": 2017, "prefixItems": 2020} | {key: year for key, (year, _) in UNSUPPORTED.items()}
SHORT_ESCAPES = "\b\f\n\r\t"
# In a pattern: a control character by itself, not the end of a range of characters
HEX = "[01][0-9a-fA-F]|7[fF]"
CONTROL = rf"(?:[\x00-\x07\x0b\x0e-\x1f\x7f]|\\(?:x(?:{HEX})|u00(?:{HEX})|[0ave]|c))"
LONE_CONTROL = re.compile(rf"(?<!-){CONTROL}(?!-)")
ESCAPED_BACKSLASH = re.compile(r"\\\\")  # what follows on it is no escape


def dialect(root: Schema) -> str:
    """Return the draft that a schema is written in: what `$schema` says, or the newest that fits.

    Raises GrammarFault for what is no schema by its draft's meta-schema.
    """
    if isinstance(root, bool):
        return LATEST
    named = str(root.get("$schema", "")).rstrip("#")
    if named in DRAFTS:
        return _checked(root, named)
    for guess in DEFAULTS:
        if jsonschema_rs.meta.is_valid({**root, "$schema": guess}) and not is_newer(root, DRAFTS[guess]):
            return guess
    return _checked(root, LATEST)


def is_newer(root: Schema, draft: int) -> bool:
    """Return whether a schema has words that a draft doesn't know, and would take for no constraint."""
    stack: list[Any] = [root]
    while stack:
        value = stack.pop()
        if isinstance(value, dict):
            if any(brought > draft for key in value if (brought := BROUGHT.get(key))):
                return True
            stack += value.values()
        elif isinstance(value, list):
            stack += value
    return False


def _checked(root: dict[str, Any], named: str) -> str:
    try:
        jsonschema_rs.meta.validate({**root, "$schema": named})
    except jsonschema_rs.ValidationError as error:
        place = join("", *error.instance_path) if error.instance_path else ""
        raise GrammarFault(f"it is no JSON Schema: {excerpt(error.message)}", place) from None
    return named


def check_place(place: Place, tree: SchemaTree, limits: GrammarLimits) -> None:
    """Raise GrammarFault for what a schema holds itself, not those below it."""
    if place.depth > limits.chain:
        raise GrammarFault(
            f"schemas must be <= {limits.chain} within each other, references followed, and this is "
            "deeper. Write the schema with fewer levels",
            place.pointer,
        )
    if isinstance(place.schema, bool):
        return
    _check_keywords(place.pointer, place.schema, tree)
    check_numbers(place.pointer, place.schema, limits)
    _check_strings(place.pointer, place.schema, limits)
    _check_objects(place.pointer, place.schema, limits)


def check_names(tree: SchemaTree) -> None:
    """Raise GrammarFault for names of objects that are left when those that can be are written otherwise."""
    for place in tree.places:
        if isinstance(place.schema, dict) and NAMES in place.schema:
            _check_keyword(place.pointer, place.schema, NAMES, tree)


def _check_keywords(at: str, node: Node, tree: SchemaTree) -> None:
    for key in node:
        if key in UNSUPPORTED and key != NAMES:
            _check_keyword(at, node, key, tree)
    if at and isinstance(node.get(tree.identifier), str) and tree.has_references:
        raise GrammarFault(
            f"`{tree.identifier}` below the top level changes what references mean, and is not supported. "
            "Leave it out, and refer to `#/$defs/...`",
            join(at, tree.identifier),
        )


def _check_keyword(at: str, node: Node, key: str, tree: SchemaTree) -> None:
    if forbids(node, key, tree.draft):
        raise GrammarFault(f"`{key}` is not supported. {UNSUPPORTED[key][1]}", join(at, key))


def _check_strings(at: str, node: Node, limits: GrammarLimits) -> None:
    if has_unsupported_format(node):
        raise GrammarFault(
            f"the format {excerpt(repr(node['format']))} is not supported. Use one of "
            f"{', '.join(sorted(FORMATS))}, or a `pattern`, or leave it out",
            join(at, "format"),
        )
    for pointer, pattern in patterns(at, node):
        if len(pattern) > limits.regex_chars:
            raise GrammarFault(
                f"a regular expression must have <= {limits.regex_chars} characters. "
                f"Given: {len(pattern)}. Shorten it",
                pointer,
            )


def _check_objects(at: str, node: Node, limits: GrammarLimits) -> None:
    count = len(node.get("patternProperties", ()))
    if count > limits.pattern_properties:
        raise GrammarFault(
            f"an object must have <= {limits.pattern_properties} `patternProperties`. Given: {count}. "
            "Join their expressions by `|`",
            join(at, "patternProperties"),
        )
    _check_names(join(at, "patternProperties"), node.get("patternProperties", ()))
    if counts_free_names(node):
        raise GrammarFault(
            "`minProperties` counts names that are not listed, and a model may give the same name twice. "
            "List the names in `required`, or leave `minProperties` out",
            join(at, "minProperties"),
        )


def counts_free_names(node: Node) -> bool:
    """Return whether `minProperties` counts two names or more that aren't listed."""
    free = node.get("minProperties", 0) - len(set(node.get("required", ())))
    return free >= 2 and may_be(node, "object") and is_open(node)


def counts_names(node: Node, key: str) -> bool:
    """Return whether `minProperties` or `maxProperties` counts names that may be there or not, beside others.

    llguidance counts where there are none to choose of, nothing but names that aren't listed, or one at most.
    """
    if key not in node or not may_be(node, "object") or is_neutral_count(node, key):
        return False
    required = len({*node.get("required", ())})
    if not is_open(node):
        return bool(node[key] - required > 1 if key == "minProperties" else node[key] != 1 or required)
    chosen = not {*node.get("properties", ())} <= {*node.get("required", ())}
    return chosen or (key == "minProperties" and counts_free_names(node))


def is_neutral_count(node: Node, key: str) -> bool:
    """Return whether `minProperties` or `maxProperties` says no more than other words of a schema do."""
    if key == "minProperties":
        return bool(node[key] <= len({*node.get("required", ())}))
    return key == "maxProperties" and not is_open(node) and node[key] >= len(node.get("properties", ()))


def _check_names(at: str, named: Collection[str]) -> None:
    """Raise GrammarFault for expressions that become the same one: only the last would be in the grammar."""
    if len({without_null(pattern, join(at, pattern)) for pattern in named}) < len(named):
        raise GrammarFault(
            "a name can match several of the `patternProperties`. Let each name match one at most", at
        )


# --- escapes of JSON strings ----------------------------------------------------------------


def check_escapes(place: Place) -> None:
    """Raise GrammarFault for a literal that needs `\\u` escapes, where they are switched off."""
    if isinstance(place.schema, bool):
        return
    for key in LITERALS:
        if key in place.schema:
            for pointer, value in scalars(place.schema[key], join(place.pointer, key)):
                if isinstance(value, str) and any(needs_escape(char) for char in value):
                    raise _control_fault(pointer)
    for pointer, pattern in patterns(place.pointer, place.schema):
        if LONE_CONTROL.search(ESCAPED_BACKSLASH.sub("__", _without_negated(pattern, pointer))):
            raise _control_fault(pointer)


def needs_escape(char: str) -> bool:
    """Return whether JSON, as it is generated, can only write a character as `\\u` and its number."""
    return char == "\x7f" or (char < " " and char not in SHORT_ESCAPES)


def _without_negated(pattern: str, at: str) -> str:
    """Return an expression without its negated classes: what they leave out needs no escape."""
    parts = (
        piece if isinstance(piece, str) else piece.text * (not piece.negated) for piece in pieces(pattern, at)
    )
    return "".join(parts)


def _control_fault(at: str) -> GrammarFault:
    return GrammarFault(
        "control characters are supported only where every object with `properties` has "
        "`additionalProperties: false`. Add that, or leave the character out",
        at,
    )


# --- parts ----------------------------------------------------------------------------------


def is_open(node: Node) -> bool:
    """Return whether an object may have names besides those that are listed."""
    return node.get("additionalProperties", True) is not False or bool(node.get("patternProperties"))


def has_names(node: Node) -> bool:
    """Return whether an object has names of its own."""
    return any(node.get(key) for key in ("properties", "required", "patternProperties"))


def patterns(at: str, node: Node) -> Iterator[tuple[str, str]]:
    """Yield a schema's regular expressions with their places."""
    if "pattern" in node:
        yield join(at, "pattern"), node["pattern"]
    for pattern in node.get("patternProperties", ()):
        yield join(at, "patternProperties", pattern), pattern
