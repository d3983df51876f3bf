"""What changed from one OpenAPI document to another: operations, and what they take and answer.

A change in a shared schema or response is one change, named by that; it names single operations only if
others that share it are as they were.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

from codegen.breaking_answers import Answers
from codegen.change import Change, Level
from codegen.comparison import Comparison, Difference, Side
from codegen.document import Document, Node, Operation
from codegen.shapes import Shapes
from openapi.schema import reachable

PATCH, MINOR, MAJOR = Level.PATCH, Level.MINOR, Level.MAJOR


class Found(NamedTuple):
    """A difference, and one of the places where it is met."""

    side: str
    use: str  # an operation, for answers with their status
    difference: Difference


class Documents:
    """Two versions of a contract."""

    def __init__(self, old: Document, new: Document) -> None:
        self.old, self.new = old, new
        shapes = Shapes(old.schemas), Shapes(new.schemas)
        self.requests = Comparison(*shapes, Side.REQUEST)
        self.answers = Answers(old, new, Comparison(*shapes, Side.RESPONSE))
        self.uses: dict[tuple[str, str], set[str]] = defaultdict(set)  # side, component -> where

    def changes(self) -> list[Change]:
        """Return every change, the same one once, in order of their keys."""
        groups: dict[tuple[str, Difference], set[str]] = defaultdict(set)
        for side, use, difference in self._all():
            groups[side, replace(difference, path=())].add(use)  # wherever in a body it is
        found = {change for group, uses in groups.items() for change in self._named(*group, uses)}
        return sorted({change.key: change for change in found}.values())

    def _named(self, side: str, difference: Difference, uses: set[str]) -> Iterator[Change]:
        """Give a difference its key: by the component that it is in, or by each place that it was met at."""
        place = "/".join([difference.name, *difference.inner])
        everywhere = bool(difference.name) and uses == self.uses[side, difference.name]
        message = difference.message
        if everywhere:
            yield _change(difference, side, place, f"{message} ({_listed(uses)})")
            return
        for use in uses:
            if difference.name:
                yield _change(difference, side, f"{place} at {use}", message)
            else:
                yield _change(difference, side, "/".join([use, *difference.inner]), message)

    def _all(self) -> Iterator[Found]:
        olds, news = _by_place(self.old.operations()), _by_place(self.new.operations())
        for place, operation in olds.items():
            if place in news:
                yield from self._operation(_name(operation), operation, news[place])
            else:
                yield _at(_name(operation), "operation-removed", MAJOR, "it isn't there any more")
        for place, operation in news.items():
            if place not in olds:
                yield _at(_name(operation), "operation-added", MINOR, "it is new")
        if self.old.data.get("servers") != self.new.data.get("servers"):
            yield _at("the document", "servers-changed", MAJOR, "paths begin elsewhere")

    def _operation(self, use: str, old: Operation, new: Operation) -> Iterator[Found]:
        if old.node.get("operationId") != new.node.get("operationId"):
            became = f"operationId is {new.node.get('operationId')}, was {old.node.get('operationId')}"
            yield _at(use, "operation-renamed", MAJOR, f"{became}: clients that are generated call it so")
        if new.node.get("deprecated") and not old.node.get("deprecated"):
            yield _at(use, "deprecated", MINOR, "it is announced to go")
        yield from self._security(use, old, new)
        yield from self._parameters(use, old, new)
        yield from self._bodies(use, old, new)
        for found in self.answers.compare(use, old, new):
            yield Found("response", found.use, found.difference)
        for name, place in self.answers.components(use, old, new):
            self.uses["response", name].add(place)

    def _security(self, use: str, old: Operation, new: Operation) -> Iterator[Found]:
        before, after = _security(self.old, old), _security(self.new, new)
        if before == after:
            return
        if before and (not after or "" in after) and "" not in before:
            yield _at(use, "security-removed", MINOR, "it is open to everybody")
        elif before and before < after:
            yield _at(use, "security-widened", MINOR, "there is one more way to authenticate")
        else:
            yield _at(use, "security-changed", MAJOR, "what authenticated may not be enough any more")

    def _parameters(self, use: str, old: Operation, new: Operation) -> Iterator[Found]:
        before, after = _parameters(self.old, old), _parameters(self.new, new)
        for key, parameter in before.items():
            if key not in after:
                yield _at(f"{use}/{key}", "parameter-removed", MAJOR, "it isn't there any more")
                continue
            if after[key].get("required") and not parameter.get("required"):
                yield _at(f"{use}/{key}", "parameter-required", MAJOR, "requests without it are refused")
            mine, its = parameter.get("schema", {}), after[key].get("schema", {})
            for difference in self.requests.differences(mine, its):
                yield Found("request", f"{use}/{key}", difference)
            if parameter.get("x-echoed") and not after[key].get("x-echoed"):
                yield _at(f"{use}/{key}", "parameter-narrowed", MAJOR, "not any value is right any more")
        for key in after.keys() - before.keys():
            level = MAJOR if after[key].get("required") else MINOR
            yield _at(f"{use}/{key}", "parameter-added", level, "it is new")

    def _bodies(self, use: str, old: Operation, new: Operation) -> Iterator[Found]:
        before, after = (
            document.resolve(operation.node.get("requestBody", {}))
            for document, operation in ((self.old, old), (self.new, new))
        )
        if before and not after:
            yield _at(use, "body-removed", MAJOR, "it takes no body any more")
            return
        if after.get("required") and not before.get("required"):
            yield _at(use, "body-required", MAJOR, "requests without a body are refused")
        contents, ours = before.get("content", {}), after.get("content", {})
        for media_type, content in contents.items():
            if media_type not in ours:
                yield _at(use, "media-type-removed", MAJOR, f"bodies may not be {media_type}", media_type)
                continue
            mine, its = content.get("schema", {}), ours[media_type].get("schema", {})
            for name in reachable(mine, self.old.components):
                self.uses["request", name].add(use)
            for difference in self.requests.differences(mine, its):
                yield Found("request", use, difference)
        for media_type in ours.keys() - contents.keys():
            yield _at(use, "media-type-added", MINOR, f"bodies may be {media_type}", media_type)


def document_changes(old: Document, new: Document) -> list[Change]:
    """Return what changed between two versions of an OpenAPI document."""
    return Documents(old, new).changes()


def _change(difference: Difference, side: str, place: str, message: str) -> Change:
    words = [difference.rule, side, place, difference.detail.replace("`", "'")]
    return Change(" ".join(filter(None, words)), difference.level, message)


def _at(use: str, rule: str, level: Level, message: str, detail: str = "") -> Found:
    return Found("", use, Difference(rule, level, message, detail=detail))


def _by_place(operations: Iterable[Operation]) -> dict[tuple[str, str], Operation]:
    """Key operations by what a client sends: the names of a path's parameters aren't sent."""
    return {(found.method, re.sub(r"\{[^}]*\}", "{}", found.path)): found for found in operations}


def _name(operation: Operation) -> str:
    return f"{operation.method.upper()} {operation.path}"


def _security(document: Document, operation: Operation) -> set[str]:
    """Return the ways to authenticate; an empty one stands for none."""
    wanted = operation.node.get("security", document.data.get("security", []))
    schemes = document.components.get("securitySchemes", {})
    return {" and ".join(sorted(_scheme(schemes.get(name, {})) for name in way)) for way in wanted}


def _scheme(node: Node) -> str:
    return " ".join(str(node[key]).lower() for key in ("type", "scheme", "in", "name") if key in node)


def _parameters(document: Document, operation: Operation) -> dict[str, Any]:
    found = [document.resolve(parameter) for parameter in operation.node.get("parameters", ())]
    return {f"{parameter['in']} {parameter['name']}": parameter for parameter in found}


def _listed(uses: set[str]) -> str:
    first = sorted(uses)
    return ", ".join(first[:4]) + (f" and {len(first) - 4} more" if len(first) > 4 else "")
