"""Says in one line why a body doesn't fit its schema: the path, what was expected there, and what was found.

Whether a body fits is the validators' business (`validation.py`). They say of an `anyOf` only that no
branch fits; here the branch that was most likely meant is found, and what is wrong with it is told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from handlers.http.digits import to_fragment

Json = Any
Schema = Mapping[str, Any]
Path = tuple[str | int, ...]

BUDGET = 20_000  # values looked at: a large body must not hold the event loop
SHOWN = 100  # characters of a value, or of a path
FIELD = re.compile(r"(?:missing|unknown) field `([^`]+)`(?:, got|$)")  # one: of several none is meant
NEAR = {"integer": "number"}  # 1.0 is nearer to an integer than to a text
NAMES = {
    "string": "a string",
    "integer": "an integer",
    "number": "a number",
    "boolean": "a boolean",
    "object": "an object",
    "array": "an array",
    "null": "null",
}


@dataclass(frozen=True, slots=True)
class Misfit:
    """One place of a body that doesn't fit."""

    path: Path
    reason: str
    near: bool = False  # it is of a type that was expected there, or nearly so

    def __str__(self) -> str:
        return f"{show_path(self.path)}: {self.reason}"

    @property
    def member(self) -> str:
        """Return the path of the member that doesn't fit, lacks or is too much; "" for the body itself."""
        field = FIELD.match(self.reason)
        path = (*self.path, field[1]) if field else self.path
        return show_path(path) if path else ""


class _OutOfBudget(Exception):
    """The body is too large to look at all of it."""


def explain(schema: Schema, body: Json) -> str:
    """Return why `body` doesn't fit `schema`, a Draft 4 schema; it's assumed that it doesn't."""
    return str(misfit_of(schema, body))


def misfit_of(schema: Schema, body: Json) -> Misfit:
    """Return the first place of `body` that doesn't fit `schema`; it's assumed that there is one."""
    try:
        misfit = Search(schema.get("definitions", {})).misfit(schema, body, ())
    except (_OutOfBudget, RecursionError):
        misfit = None
    return misfit or Misfit((), "does not have the shape that the contract describes")


def find_misfit(schema: Schema, body: Json) -> Misfit | None:
    """Return the first place that doesn't fit; None if all does."""
    return Search(schema.get("definitions", {})).misfit(schema, body, ())


class Search:
    """A walk through a body and its schema, up to the first misfit."""

    def __init__(self, definitions: Schema) -> None:
        self._definitions = definitions
        self._left = BUDGET

    def misfit(self, schema: Schema, value: Json, path: Path) -> Misfit | None:
        """Return the first misfit of `value`, which stands at `path`, or None."""
        self._left -= 1
        if self._left < 0:
            raise _OutOfBudget
        schema = self._resolve(schema)
        reason = _unfit(schema, value)
        if reason is not None:
            return Misfit(path, reason, any(_is(NEAR.get(kind, kind), value) for kind in _declared(schema)))
        return next(self._inner(schema, value, path), None)

    def _inner(self, schema: Schema, value: Json, path: Path) -> Iterator[Misfit]:
        for child, member, place in _children(schema, value, path):
            found = self.misfit(child, member, place)
            if found is not None:
                yield found
        for part in schema.get("allOf", ()):
            found = self.misfit(part, value, path)
            if found is not None:
                yield found
        for keyword in ("anyOf", "oneOf"):
            if keyword in schema:
                yield from self._alternatives(schema, keyword, value, path)
        if "not" in schema and self.misfit(schema["not"], value, path) is None:
            yield Misfit(path, f"{show(value)} is excluded")

    def _alternatives(self, schema: Schema, keyword: str, value: Json, path: Path) -> Iterator[Misfit]:
        fitting = 0
        for branch in schema[keyword]:
            fitting += self.misfit(branch, value, path) is None
            if fitting and keyword == "anyOf":
                return
        if fitting == 1:
            return
        if fitting > 1:
            yield Misfit(path, "has more than one of the forms that exclude each other")
            return
        yield self._best(list(self._leaves(schema, keyword)), value, path)

    def _best(self, leaves: list[Schema], value: Json, path: Path) -> Misfit:
        """Return the misfit of the branch that was most likely meant."""
        meant = [leaf for leaf in leaves if _may_be(leaf, value)]
        if not meant:
            kinds = dict.fromkeys(kind for leaf in leaves for kind in _kinds(leaf))
            return Misfit(path, f"expected {_either([NAMES[kind] for kind in kinds])}, got {show(value)}")
        lacking = [_lacking(leaf, value) for leaf in meant]
        if len(meant) > 1 and all(lacking) and not any(_tags(leaf, value) for leaf in meant):
            names = [f"`{name}`" for name in dict.fromkeys(filter(None, lacking))]
            return Misfit(path, f"missing field {_either(names)}, got {show(value)}")
        misfits = [(leaf, self.misfit(leaf, value, path)) for leaf in meant]
        ranked = [
            (_closeness(leaf, value, found, path), found) for leaf, found in misfits if found is not None
        ]
        return max(ranked, key=lambda pair: pair[0])[1]

    def _leaves(self, schema: Schema, keyword: str) -> Iterator[Schema]:
        for branch in schema[keyword]:
            resolved = self._resolve(branch)
            inner = next((key for key in ("anyOf", "oneOf") if key in resolved), None)
            if inner is None:
                yield resolved
            else:
                yield from self._leaves(resolved, inner)

    def _resolve(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            schema = self._definitions[schema["$ref"].rpartition("/")[2]]
        return schema


def show(value: Json) -> str:
    """Return a short text for a value of any size."""
    if isinstance(value, str):
        return orjson.dumps(value[:SHOWN]).decode() + ("…" if len(value) > SHOWN else "")
    if isinstance(value, list):
        return f"an array of {len(value)}"
    if isinstance(value, dict):
        names = [f"`{name[:20]}`" for name in list(value)[:3]]
        more = ", …" if len(value) > len(names) else ""
        return f"an object with {', '.join(names)}{more}" if names else "an empty object"
    return orjson.dumps(value, default=to_fragment).decode()


def show_path(path: Path) -> str:
    """Return a path as in `messages[0].content`."""
    text = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path).lstrip(".")
    return (text[:SHOWN] + "…" if len(text) > SHOWN else text) or "body"


def _unfit(schema: Schema, value: Json) -> str | None:
    """Return what is wrong with the value itself, its children aside."""
    kinds = _declared(schema)
    if kinds and not any(_is(kind, value) for kind in kinds):
        reason = _beyond(schema, value) if "integer" in kinds else None
        if reason is not None:
            return f"{reason}, got {show(value)}"
        return f"expected {_either([NAMES[kind] for kind in kinds])}, got {show(value)}"
    if "enum" in schema and not any(same(value, allowed) for allowed in schema["enum"]):
        return f"expected {_either([show(allowed) for allowed in schema['enum']])}, got {show(value)}"
    for kind, checks in CHECKS.items():
        if _is(kind, value):
            for keyword, check in checks.items():
                reason = check(schema, value) if keyword in schema else None
                if reason is not None:
                    return f"{reason}, got {show(value)}"
    return None


def _children(schema: Schema, value: Json, path: Path) -> Iterator[tuple[Schema, Json, Path]]:
    if isinstance(value, dict):
        known = schema.get("properties", {})
        others = schema.get("additionalProperties")
        for name, member in value.items():
            child = known.get(name, others)
            if isinstance(child, Mapping):
                yield child, member, (*path, name)
    elif isinstance(value, list) and "items" in schema:
        yield from ((schema["items"], item, (*path, index)) for index, item in enumerate(value))


def _closeness(schema: Schema, value: Json, misfit: Misfit, path: Path) -> tuple[int, int, int, bool]:
    """Rank a branch: how many tags agree, how many required members lack, how deep it fits, and how nearly.

    Of an array, how many of its items fit, how deep the next one does, and how nearly.
    """
    if not isinstance(value, dict):
        step = next(iter(misfit.path[len(path) :]), 0)
        return (0, step if isinstance(step, int) else 0, len(misfit.path), misfit.near)
    lacking = sum(name not in value for name in schema.get("required", ()))
    return (_tags(schema, value), -lacking, len(misfit.path), misfit.near)


def _tags(schema: Schema, value: dict[str, Json]) -> int:
    """Count the members that name a branch: those that agree less those that don't."""
    tags = 0
    for name, member in schema.get("properties", {}).items():
        if name in value and "enum" in member:
            tags += 1 if value[name] in member["enum"] else -1
    return tags


def _declared(schema: Schema) -> list[str]:
    kinds = schema.get("type", [])
    return [kinds] if isinstance(kinds, str) else list(kinds)


def _kinds(schema: Schema) -> list[str]:
    """Return the types that a branch really has: those of its enum, if it has one."""
    if "enum" not in schema:
        return _declared(schema)
    return [kind for kind in NAMES if any(_is(kind, value) for value in schema["enum"])]


def _may_be(schema: Schema, value: Json) -> bool:
    kinds = _kinds(schema)
    return not kinds or any(_is(kind, value) for kind in kinds)


def _is(kind: str, value: Json) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    return isinstance(value, TYPES[kind])


def same(left: Json, right: Json) -> bool:
    """Return whether two values are the same JSON: true isn't 1."""
    return bool(left == right) and isinstance(left, bool) is isinstance(right, bool)


def _either(names: list[str]) -> str:
    return " or ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _minimum(schema: Schema, value: float) -> str | None:
    limit = schema["minimum"]
    if schema.get("exclusiveMinimum"):
        return None if value > limit else f"expected more than {limit}"
    return None if value >= limit else f"expected at least {limit}"


def _maximum(schema: Schema, value: float) -> str | None:
    limit = schema["maximum"]
    if schema.get("exclusiveMaximum"):
        return None if value < limit else f"expected less than {limit}"
    return None if value <= limit else f"expected at most {limit}"


def _beyond(schema: Schema, value: Json) -> str | None:
    """Return which bound an integer passes that was read as a float, since it has more than 64 bits."""
    if not isinstance(value, float) or abs(value) < 2**63 or not value.is_integer():
        return None
    keyword, check = ("minimum", _minimum) if value < 0 else ("maximum", _maximum)
    return check(schema, value) if keyword in schema else None


def _required(schema: Schema, value: dict[str, Json]) -> str | None:
    lacking = _lacking(schema, value)
    return None if lacking is None else f"missing field `{lacking}`"


def _lacking(schema: Schema, value: Json) -> str | None:
    if not isinstance(value, dict):
        return None
    return next((name for name in schema.get("required", ()) if name not in value), None)


def _additional(schema: Schema, value: dict[str, Json]) -> str | None:
    if schema["additionalProperties"] is not False:
        return None
    extra = next((name for name in value if name not in schema.get("properties", {})), None)
    return None if extra is None else f"unknown field `{extra[:SHOWN]}`"


def _at_least(keyword: str, what: str) -> Callable[[Schema, Any], str | None]:
    return lambda schema, value: (
        None if len(value) >= schema[keyword] else f"expected at least {schema[keyword]} {what}"
    )


def _at_most(keyword: str, what: str) -> Callable[[Schema, Any], str | None]:
    return lambda schema, value: (
        None if len(value) <= schema[keyword] else f"expected at most {schema[keyword]} {what}"
    )


def _pattern(schema: Schema, value: str) -> str | None:
    return None if re.search(schema["pattern"], value) else f"expected text that matches {schema['pattern']}"


def _unique(schema: Schema, value: list[Json]) -> str | None:
    if not schema["uniqueItems"]:
        return None
    distinct = {orjson.dumps(item, to_fragment, orjson.OPT_SORT_KEYS) for item in value}
    return None if len(distinct) == len(value) else "expected no item twice"


TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
    "null": type(None),
}

CHECKS: dict[str, dict[str, Callable[[Schema, Any], str | None]]] = {
    "string": {
        "minLength": _at_least("minLength", "characters"),
        "maxLength": _at_most("maxLength", "characters"),
        "pattern": _pattern,
    },
    "number": {"minimum": _minimum, "maximum": _maximum},
    "array": {
        "minItems": _at_least("minItems", "items"),
        "maxItems": _at_most("maxItems", "items"),
        "uniqueItems": _unique,
    },
    "object": {
        "required": _required,
        "additionalProperties": _additional,
        "minProperties": _at_least("minProperties", "members"),
        "maxProperties": _at_most("maxProperties", "members"),
    },
}
