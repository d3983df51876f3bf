"""Every member that a request of the contract can have, with what the document says of it at its place."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from jsonschema import Draft4Validator

from codegen.document import SCHEMAS, Document, Node

DOCUMENT = Document.load()
Steps = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Place:
    """A member of the body of one operation."""

    path: str  # of the operation, as in the document
    root: str  # schema of the body
    schema: str  # schema of the object that has the member
    member: str
    steps: Steps  # the way to that object
    told: Node  # the member's schema
    idle: bool = False  # without effect here, whatever it is elsewhere

    @property
    def support(self) -> str:
        """Return what the document says of it here."""
        return "reported" if self.idle else str(self.told["x-support"])

    @property
    def name(self) -> str:
        """Return the name that the server has for it, wherever it stands."""
        return re.sub(r"\[\d+\]", "[]", self.at)

    @property
    def at(self) -> str:
        """Return where it stands."""
        way = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in self.steps)
        return f"{way}.{self.member}".removeprefix(".")

    @property
    def neutral(self) -> tuple[Any, ...]:
        """Return the values that ask for nothing, null apart."""
        default = [self.told["x-default"]] if self.idle and "x-default" in self.told else []
        return (*self.told.get("x-neutral", ()), *default)

    def fits(self, value: Any) -> bool:
        """Return whether the member's schema takes a value."""
        return bool(Draft4Validator(DOCUMENT.draft4(self.told)).is_valid(value))

    def __str__(self) -> str:
        return f"{self.path} {self.root} {self.name}"


def places() -> Iterator[Place]:
    """Yield every member that a request can have, outside of those without effect.

    Of operations that change the server, whose answer isn't the same again, tests of their own see to that.
    """
    for request in DOCUMENT.requests():
        if request.operation.node.get("x-changes-server"):
            continue
        root = request.node["schema"]
        for branch in DOCUMENT.resolve(root).get("anyOf", [root]):
            body = Place(request.operation.path, component(branch), "", "", (), {})
            yield from members(body, branch, ())


def members(body: Place, schema: Node, idle: tuple[str, ...]) -> Iterator[Place]:
    """Yield the members of a schema that stands at `body.steps`, and what those that are honoured hold."""
    resolved = DOCUMENT.resolve(schema)
    for name, member in resolved.get("properties", {}).items():
        told = {**DOCUMENT.resolve(member), **{key: member[key] for key in member if key != "$ref"}}
        place = Place(body.path, body.root, component(schema), name, body.steps, told, name in idle)
        yield place
        if place.support == "honoured":
            yield from members(below(place, name), member, tuple(told.get("x-without-effect", ())))
    for branch in resolved.get("anyOf", ()):
        yield from members(body, branch, idle)
    if "items" in resolved:  # of a union, the body has an element for each kind of object
        kinds = DOCUMENT.resolve(resolved["items"]).get("anyOf", [resolved["items"]])
        for at, kind in enumerate(kinds):
            yield from members(below(body, at), kind, idle)


def below(place: Place, step: str | int) -> Place:
    """Return where the members of a value stand."""
    return Place(place.path, place.root, "", "", (*place.steps, step), {})


def component(schema: Node) -> str:
    """Return the name of a schema that is referred to."""
    return str(schema.get("$ref", "")).removeprefix(SCHEMAS)


PLACES = tuple(places())
