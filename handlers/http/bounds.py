"""How many items an array of a body, or members an object, may have: the document says it with `x-most`.

These are looked at first, by length alone: a body that has more is refused for no more work than parsing it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from handlers.http.errors import Refused
from handlers.http.explain import Path, show_path

Json = Any
Schema = Mapping[str, Any]

MOST = "x-most"
UNIONS = ("anyOf", "oneOf", "allOf")


@dataclass(frozen=True, slots=True)
class Excess:
    """An array or an object that has too many."""

    path: Path
    given: int
    most: int
    what: str

    def within(self, step: str | int) -> Excess:
        """Return the same, seen from what stands around it."""
        return Excess((step, *self.path), self.given, self.most, self.what)


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of a value, and of what is in it."""

    items_most: int | None = None
    members_most: int | None = None
    items: Bounds | None = None  # of each item
    members: Mapping[str, Bounds] = field(default_factory=dict)

    def check(self, body: Json) -> None:
        """Raise 422 for the first array or object that has too many."""
        found = self.excess(body)
        if found is not None:
            where = show_path(found.path)
            raise Refused(
                f"Input validation error: `{where}` must have at most {found.most} {found.what}. "
                f"Given: {found.given}. Send fewer",
                param=where if found.path else "",
            )

    def excess(self, value: Json) -> Excess | None:
        """Return the first excess in a value, or None."""
        if isinstance(value, dict):
            return self._of_object(value)
        return self._of_array(value) if isinstance(value, list) else None

    def _of_object(self, value: dict[str, Json]) -> Excess | None:
        if self.members_most is not None and len(value) > self.members_most:
            return Excess((), len(value), self.members_most, "members")
        for name, bounds in self.members.items():
            found = bounds.excess(value.get(name))
            if found is not None:
                return found.within(name)
        return None

    def _of_array(self, value: list[Json]) -> Excess | None:
        if self.items_most is not None and len(value) > self.items_most:
            return Excess((), len(value), self.items_most, "items")
        if self.items is not None:
            for at, item in enumerate(value):
                found = self.items.excess(item)
                if found is not None:
                    return found.within(at)
        return None


NONE = Bounds()


def bounds_of(schema: Schema, components: Schema) -> Bounds:
    """Return the bounds of a request's schema.

    Of alternatives of one type the widest bound holds, and none if one of them has none. A schema that stands
    within itself is looked into once.
    """
    return Compiler(components.get("schemas", {})).bounds([schema], ()) or NONE


class Compiler:
    """Turns schemas of the document into bounds."""

    def __init__(self, schemas: Schema) -> None:
        self._schemas = schemas

    def bounds(self, schemas: Sequence[Schema], above: tuple[int, ...]) -> Bounds | None:
        """Return the bounds of a value that may be of any of `schemas`; None where there are none."""
        forms = [form for schema in schemas for form in self._forms(schema) if id(form) not in above]
        if not forms:
            return None
        above += tuple(map(id, forms))
        arrays = [form for form in forms if form.get("type") == "array"]
        objects = [form for form in forms if "properties" in form or form.get("type") == "object"]
        names = dict.fromkeys(name for form in objects for name in form.get("properties", {}))
        members = {name: self._member(name, objects, above) for name in names}
        bounds = Bounds(
            items_most=_widest(arrays),
            members_most=_widest(objects),
            items=self.bounds([form["items"] for form in arrays if "items" in form], above),
            members={name: member for name, member in members.items() if member is not None},
        )
        return None if bounds == NONE else bounds

    def _member(self, name: str, objects: Sequence[Schema], above: tuple[int, ...]) -> Bounds | None:
        known = [form["properties"][name] for form in objects if name in form.get("properties", {})]
        return self.bounds(known, above)

    def _forms(self, schema: Schema) -> Iterator[Schema]:
        """Yield the schemas that a value may be of, references and unions resolved; null isn't one."""
        while "$ref" in schema:
            schema = self._schemas[str(schema["$ref"]).rpartition("/")[2]]
        unions = [union for union in UNIONS if union in schema]
        for union in unions:
            for branch in schema[union]:
                yield from self._forms(branch)
        if not unions and "enum" not in schema:
            yield schema


def _widest(forms: Sequence[Schema]) -> int | None:
    bounds: list[int] = [form[MOST] for form in forms if MOST in form]
    return max(bounds) if bounds and len(bounds) == len(forms) else None
