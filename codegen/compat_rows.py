"""How each member of each document that clients were made from fares here: a row for each.

A row says one of these:

* `same`: what is valid there is valid here, and the reverse;
* `wider`: more is taken here, or said;
* `narrower`: less is taken here, or said;
* `different`: it is there, and absence stands for another value;
* `ignored`: it is taken and has no effect, and the answer names it in `x-ignored-parameters`;
* `refused`: it is known, and answered with 422 unless it asks for nothing;
* `absent`: it isn't there: an operation, a status, a header, or a member of an answer.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from codegen.change import Level
from codegen.comparison import LEVELS, Comparison, Side, describe_shape
from codegen.document import EVENTS, JSON, SCHEMAS, Document, Operation
from codegen.references import Reference
from codegen.shapes import Node, Shape, Shapes
from openapi.yamlload import parse

STATUSES = ("same", "wider", "narrower", "different", "ignored", "refused", "absent")
REQUEST = "request"  # the place of a request's members; those of an answer are at `200 application/json`
ANSWERS = "answers"  # the place of statuses and headers
BOUNDS = ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum")
Path = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that a document documents."""

    document: str
    operation: str
    place: str
    member: str  # its path, `*` for elements; empty for the body itself
    status: str
    theirs: str = ""  # in our words, unless the row says `same`
    ours: str = ""
    reason: str = field(default="", compare=False)

    @property
    def key(self) -> tuple[str, str, str, str]:
        """Return what no two rows share."""
        return self.document, self.operation, self.place, self.member


class Members:
    """What each member of a body may hold, by its path; a schema within itself is looked into once."""

    def __init__(self, shapes: Shapes, schema: Node) -> None:
        self.shapes = shapes
        self.found: dict[Path, list[Node]] = defaultdict(list)
        self._walk(schema, (), ())

    def told(self, path: Path) -> Node:
        """Return a member's keywords."""
        return self.shapes.told(self.found[path][0])

    def may_be(self, path: Path) -> list[Shape]:
        """Return what a member may be."""
        return [shape for node in self.found[path] for shape in self.shapes.of(node)]

    def holds(self, path: Path) -> bool:
        """Return whether it is a member, or what a member of any content may hold."""
        above = path
        while above not in self.found:
            above = above[:-1]
        kinds = ("array", "object")
        return above == path or any(shape.free and shape.kind in kinds for shape in self.may_be(above))

    def describe(self, path: Path) -> str:
        """Say what a member may be, and what its absence stands for."""
        shapes = self.may_be(path)
        if len({shape.kind for shape in shapes}) > 5:
            return "anything"
        plain = [describe_shape(shape) for shape in shapes if shape.values is None]
        values = [json.dumps(value) for shape in shapes for value in shape.values or ()]
        words = sorted(dict.fromkeys([*plain, *values]), key=lambda word: (word == "null", word))
        value = self.default(path)
        return " or ".join(words) + ("" if value is None else f"; without it {json.dumps(value)}")

    def default(self, path: Path) -> Any:
        """Return what absence stands for; None if nothing is said. Some documents write defaults as text."""
        told = self.told(path)
        value = told.get("x-default", told.get("default"))
        is_text = value != "null" and any(shape.kind == "string" for shape in self.may_be(path))
        return parse(value) if isinstance(value, str) and not is_text else value

    def _walk(self, schema: Node, path: Path, above: tuple[int, ...]) -> None:
        self.found[path].append(schema)
        for shape in self.shapes.of(schema):
            if id(shape) in above:
                continue
            within = (*above, id(shape))
            if shape.items:
                self._walk(shape.items, (*path, "*"), within)
            for name, member in shape.members.items():
                self._walk(member, (*path, name), within)


def rows(document: Document, references: Iterable[Reference]) -> list[Row]:
    """Return a row for everything that the documents document."""
    ours = {f"{found.method.upper()} {found.path}": found for found in document.operations()}
    return [row for reference in references for row in _Rows(document, reference, ours).all()]


class _Rows:
    """The rows of one document."""

    def __init__(self, document: Document, reference: Reference, ours: Mapping[str, Operation]) -> None:
        self.document, self.reference, self.ours = document, reference, ours
        self.theirs = Shapes(ranged(reference.schemas), loose=True)
        self.shapes = Shapes(ranged(document.schemas), loose=True)

    def all(self) -> Iterator[Row]:
        operations = [*self.reference.statuses, *(key for key, _, _ in self.reference.written)]
        for key in dict.fromkeys(operations):
            name = " ".join(key)
            if name not in self.ours:
                yield Row(self.reference.name, name, "", "", "absent")
                continue
            yield from self._answers(name, self.ours[name], key)
            for (other, status, media_type), schema in self.reference.written.items():
                if other == key:
                    yield from self._body(name, status, media_type, schema)

    def _answers(self, name: str, operation: Operation, key: tuple[str, str]) -> Iterator[Row]:
        known = answers(self.document, operation)
        told = [*sorted(self.reference.statuses.get(key, ()))]
        told += [f"header {header}" for header in sorted(self.reference.headers.get(key, ()))]
        for thing in told:
            yield Row(self.reference.name, name, ANSWERS, thing, "same" if thing in known else "absent")

    def _body(self, name: str, status: str, media_type: str, schema: Node) -> Iterator[Row]:
        place = f"{status} {media_type}" if status else REQUEST
        mine = body(self.document, self.ours[name], place)
        if mine is None:
            if status in self.ours[name].node["responses"]:
                yield Row(self.reference.name, name, place, "", "absent")
            return
        schema = ranged({"": schema})[""]
        comparison = Comparison(
            self.theirs, self.shapes, Side.RESPONSE if status else Side.REQUEST, forms=False
        )
        levels: dict[Path, set[Level]] = defaultdict(set)
        for difference in comparison.differences(schema, mine):
            if difference.rule in LEVELS and not difference.rule.startswith("member-"):
                levels[difference.path].add(difference.level)
        theirs, ours = Members(self.theirs, schema), Members(self.shapes, mine)
        without: list[Path] = []  # what stands below isn't looked at
        for path in theirs.found:
            if not any(path[: len(above)] == above for above in without):
                found = _status(place == REQUEST, path, (theirs, ours), levels[path])
                if found in ("refused", "ignored", "absent"):
                    without.append(path)
                said = "" if found == "same" else theirs.describe(path)
                known = told(ours, path, found)
                yield Row(self.reference.name, name, place, "/".join(path), found, said, known)


def told(ours: Members, path: Path, status: str) -> str:
    """Say what a member is here, for a row of that status."""
    return "" if status == "same" or path not in ours.found else ours.describe(path)


def answers(document: Document, operation: Operation) -> set[str]:
    """Return the statuses and headers that an operation of ours answers with."""
    responses = operation.node["responses"]
    headers = document.resolve(responses["200"]).get("headers", {})
    return {*responses, *(f"header {header.lower()}" for header in headers)}


def body(document: Document, operation: Operation, place: str) -> Node | None:
    """Return our schema of a request, or of an answer; of a stream, that of one event."""
    status, _, media_type = (" " + JSON if place == REQUEST else place).partition(" ")
    holder = operation.node["responses"].get(status, {}) if status else operation.node.get("requestBody", {})
    content = document.resolve(holder).get("content", {}).get(media_type)
    if content is None:
        return None
    if media_type == EVENTS:
        events = [{"$ref": SCHEMAS + dialect["event"]} for dialect in content["x-sse"]]
        return {"anyOf": events}
    schema: Node = ranged({"": content["schema"]})[""]
    return schema


def ranged(schemas: Node) -> dict[str, Any]:
    """Return schemas with the bounds that count: those of `x-range`, and none that are an integer type's."""
    return {name: _ranged(schema) for name, schema in schemas.items()}


def _ranged(node: Any) -> Any:
    if isinstance(node, list):
        return [_ranged(value) for value in node]
    if not isinstance(node, Mapping):
        return node
    out = {key: _ranged(value) for key, value in node.items()}
    if out.get("type") in ("integer", "number"):
        if bounds := _bounds(str(out.get("x-range", ""))):
            out = {key: value for key, value in out.items() if key not in BOUNDS} | bounds
        for key, widest in (("minimum", -(2**31)), ("maximum", 2**31 - 1)):
            if key in out and (out[key] <= widest if key == "minimum" else out[key] >= widest):
                del out[key]
        if out["type"] == "integer" and out.get("exclusiveMinimum"):
            out.update(minimum=int(out["minimum"]) + 1, exclusiveMinimum=False)
    return out


def _bounds(text: str) -> dict[str, Any]:
    """Read the numbers of an `x-range`; what is a setting's, or the model's, is no number."""
    bounds: dict[str, Any] = {}
    for sign, number in re.findall(r"([<>]=?) ?(-?[\d.]+)", text):
        key = "minimum" if sign[0] == ">" else "maximum"
        bounds[key] = parse(number)
        if len(sign) == 1:
            bounds["exclusive" + key.capitalize()] = True
    if match := re.match(r"(-?[\d.]+) to (-?[\d.]+)?", text):
        bounds.update({"minimum": parse(match[1])} | ({"maximum": parse(match[2])} if match[2] else {}))
    return bounds


def _status(request: bool, path: Path, members: tuple[Members, Members], levels: set[Level]) -> str:
    theirs, ours = members
    if not ours.holds(path):
        return "ignored" if request else "absent"
    support = ours.told(path).get("x-support", "honoured") if request and path in ours.found else "honoured"
    if support in ("later", "refused"):
        return "refused"
    if support == "reported":
        return "ignored"
    if Level.MAJOR in levels:
        return "narrower" if request else "wider"
    if path not in ours.found:
        return "same"
    if request and theirs.default(path) is not None and theirs.default(path) != ours.default(path):
        return "different"
    if not levels:
        return "same"
    return "wider" if request else "narrower"
