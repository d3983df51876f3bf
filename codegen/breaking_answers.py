"""What changed in the answers of an operation: statuses, headers, media types, bodies, events of streams."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from codegen.change import Level
from codegen.comparison import Comparison, Difference
from codegen.document import SCHEMAS, Document, Node, Operation
from openapi.schema import reachable

MINOR, MAJOR = Level.MINOR, Level.MAJOR


class Met(NamedTuple):
    """A difference, and the answer that it was met in: an operation and a status."""

    use: str
    difference: Difference


class Answers:
    """The answers of two versions of a contract."""

    def __init__(self, old: Document, new: Document, comparison: Comparison) -> None:
        self.old, self.new, self.comparison = old, new, comparison

    def compare(self, use: str, old: Operation, new: Operation) -> Iterator[Met]:
        """Yield what changed in an operation's answers."""
        before, after = old.node["responses"], new.node["responses"]
        for status in before.keys() - after.keys():
            yield Met(use, _difference("status-removed", MAJOR, f"{status} isn't answered any more", status))
        for status in after.keys() - before.keys():
            # whoever doesn't know an error's status goes by its class; a new success is a new kind of answer
            level = MINOR if status[0] in "45" else MAJOR
            yield Met(use, _difference("status-added", level, f"{status} may be answered", status))
        for status in before.keys() & after.keys():
            name = _component(before[status])
            mine, its = self.old.resolve(before[status]), self.new.resolve(after[status])
            for difference in self._response(mine, its):
                outside = not difference.name and name
                named = replace(difference, name=name) if outside else difference
                yield Met(f"{use} {status}", named)

    def components(self, use: str, old: Operation, new: Operation) -> Iterator[tuple[str, str]]:
        """Yield each component that was compared for an operation, with the answer that it is in."""
        for status in old.node["responses"].keys() & new.node["responses"].keys():
            place = f"{use} {status}"
            if name := _component(old.node["responses"][status]):
                yield name, place
            for content in self.old.resolve(old.node["responses"][status]).get("content", {}).values():
                for schema in _schemas(content):
                    yield from ((name, place) for name in reachable(schema, self.old.components))

    def _response(self, old: Node, new: Node) -> Iterator[Difference]:
        yield from self._headers(old.get("headers", {}), new.get("headers", {}))
        before, after = old.get("content", {}), new.get("content", {})
        for media_type in before.keys() - after.keys():
            yield _difference("media-type-removed", MAJOR, f"it is never {media_type} any more", media_type)
        for media_type in after.keys() - before.keys():
            level = MINOR if before else MAJOR
            yield _difference("media-type-added", level, f"it may be {media_type}", media_type)
        for media_type in before.keys() & after.keys():
            mine, its = before[media_type], after[media_type]
            if "x-sse" in mine:
                yield from self._stream(mine, its)
            else:
                yield from self.comparison.differences(mine.get("schema", {}), its.get("schema", {}))

    def _headers(self, old: Node, new: Node) -> Iterator[Difference]:
        before = {name.lower(): self.old.resolve(header) for name, header in old.items()}
        after = {name.lower(): self.new.resolve(header) for name, header in new.items()}
        for name in before.keys() - after.keys():
            yield _difference("header-removed", MAJOR, f"{name} isn't sent any more", name)
        for name in after.keys() - before.keys():
            yield _difference("header-added", MINOR, f"{name} is new", name)
        for name in before.keys() & after.keys():
            mine, its = before[name], after[name]
            for media_type in sorted({*mine.get("x-sent-with", ())} - {*its.get("x-sent-with", ())}):
                message = f"it isn't sent with {media_type} any more"
                yield _difference("header-removed", MAJOR, message, f"{name} {media_type}")
            always, still = bool(mine.get("required")), bool(its.get("required"))
            if always and not still:
                yield _difference("header-optional", MAJOR, f"{name} isn't always sent any more", name)
            elif still and not always:
                yield _difference("header-always", MINOR, f"{name} is always sent", name)
            found = self.comparison.differences(mine.get("schema", {}), its.get("schema", {}))
            yield from (difference.below(f"header {name}") for difference in found)

    def _stream(self, old: Node, new: Node) -> Iterator[Difference]:
        """Compare the dialects of a stream: those with events of the same name, or at the same place."""
        before, after = old["x-sse"], new.get("x-sse", [])
        known = {dialect["event"] for dialect in before}
        for place, dialect in enumerate(before):
            named = [other for other in after if other["event"] == dialect["event"]]
            renamed = [other for other in after[place : place + 1] if other["event"] not in known]
            if named or renamed:
                yield from self._dialect(dialect, [*named, *renamed][0])
            else:
                message = "its events aren't declared any more"
                yield _difference("events-removed", MAJOR, message, dialect["event"])
        for dialect in after[len(before) :]:
            if dialect["event"] not in known:
                yield _difference("events-added", MAJOR, "the stream may be another one", dialect["event"])

    def _dialect(self, old: Node, new: Node) -> Iterator[Difference]:
        if old["terminator"] != new["terminator"]:
            became = f"the last line is {new['terminator']}, was {old['terminator']}"
            yield _difference("terminator-changed", MAJOR, became, old["event"])
        for kind in ("event", "error"):
            mine, its = ({"$ref": SCHEMAS + dialect[kind]} for dialect in (old, new))
            yield from self.comparison.differences(mine, its)


def _schemas(content: Node) -> Iterator[Node]:
    yield content.get("schema", {})
    for dialect in content.get("x-sse", ()):
        yield from ({"$ref": SCHEMAS + dialect[kind]} for kind in ("event", "error"))


def _component(response: Node) -> str:
    """Return the shared response that stands there, as a name that no schema has."""
    return "responses/" + str(response["$ref"]).rsplit("/", 1)[-1] if "$ref" in response else ""


def _difference(rule: str, level: Level, message: str, detail: str) -> Difference:
    return Difference(rule, level, message, detail=detail)
