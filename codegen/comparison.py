"""How what one schema takes differs from what another one takes: an old and a new one, or theirs and ours.

What a difference weighs depends on the side. A request that was right must stay right, so that taking less
breaks; an answer must stay what clients were made for, so that saying more breaks. New members break neither:
the server takes members that it doesn't know, and clients are to pass over theirs. Words of an answer aren't
an open set unless they are marked so. Such are the rules of Zalando's guidelines (107 to 112) and of AIP-180.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, NamedTuple

from codegen.change import Level
from codegen.marks import Mark, added_member, marks, most, removed_member
from codegen.shapes import LOWER, TEXTS, UPPER, Bound, Node, Shape, Shapes, tighter

PATCH, MINOR, MAJOR = Level.PATCH, Level.MINOR, Level.MAJOR


class Side(StrEnum):
    """Who writes what the schema describes."""

    REQUEST = "request"
    RESPONSE = "response"


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing that isn't as it was."""

    rule: str
    level: Level
    message: str
    path: tuple[str, ...] = ()  # from the outermost schema; "*" for elements, "{}" for members of any name
    name: str = ""  # the old component schema that it stands in, if it does
    inner: tuple[str, ...] = ()  # the path from there
    detail: str = ""  # tells differences by the same rule at one place apart

    def below(self, part: str) -> Difference:
        """Return it as seen from the schema that holds this one as `part`."""
        inner = self.inner if self.name else (part, *self.inner)
        return replace(self, path=(part, *self.path), inner=inner)


class _Pair(NamedTuple):
    """A shape that may be what another one has become, and how it differs."""

    partner: Shape
    found: tuple[Difference, ...]

    @property
    def harmless(self) -> bool:
        return all(one.level is not MAJOR for one in self.found)

    def distance(self, name: str) -> tuple[int, bool, int]:
        return sum(one.level is MAJOR for one in self.found), name != self.partner.name, len(self.found)


# rule -> what it weighs in a request and in a response
LEVELS: dict[str, tuple[Level, Level]] = {
    "member-removed": (MAJOR, MAJOR),
    "member-added": (MINOR, MINOR),
    "member-required": (MAJOR, MINOR),
    "member-optional": (MINOR, MAJOR),
    "type-removed": (MAJOR, PATCH),
    "type-added": (MINOR, MAJOR),
    "form-removed": (MAJOR, PATCH),  # one of several alternatives of a type
    "form-added": (MINOR, MAJOR),
    "value-removed": (MAJOR, PATCH),
    "value-added": (MINOR, MAJOR),
    "narrower": (MAJOR, PATCH),
    "wider": (MINOR, MAJOR),
    "undecided": (MAJOR, MAJOR),
}


class Comparison:
    """Compares schemas of two documents; each pair once, as parts are shared.

    With `forms` an alternative is said to be gone, or new, as a whole where another one has what it could
    have become; without it, how it differs from that is said.
    """

    def __init__(self, old: Shapes, new: Shapes, side: Side, forms: bool = True) -> None:
        self.old, self.new, self.side, self.forms = old, new, side, forms
        self._known: dict[tuple[int, int], tuple[Node, Node, tuple[Difference, ...]]] = {}

    def differences(self, old: Node, new: Node) -> tuple[Difference, ...]:
        """Return what differs, the same thing once."""
        if not old and not new:
            return ()  # anything, made of anything
        key = id(old), id(new)
        if key not in self._known:
            # a schema within itself: what differs is found where it is met first
            self._known[key] = old, new, ()
            found = self._alternatives(self.old.of(old), self.new.of(new))
            self._known[key] = old, new, tuple(dict.fromkeys(found))
        return self._known[key][2]

    def _alternatives(self, olds: tuple[Shape, ...], news: tuple[Shape, ...]) -> Iterator[Difference]:
        """Find to each shape that must have one its partner, the most alike; then look at those left over."""
        request = self.side is Side.REQUEST
        lead, follow = (olds, news) if request else (news, olds)
        gone, come = ("removed", "added") if request else ("added", "removed")
        taken: set[int] = set()
        for shape, pair in zip(lead, self._pairs(lead, follow), strict=True):
            if pair is None:
                yield self._alone(shape, follow, gone)
            else:
                taken.add(id(pair.partner))
                yield from pair.found
        yield from (self._alone(shape, lead, come) for shape in follow if id(shape) not in taken)

    def _pairs(self, lead: tuple[Shape, ...], follow: tuple[Shape, ...]) -> list[_Pair | None]:
        pairs = []
        for shape in lead:
            choices = [_Pair(other, self._pair(shape, other)) for other in follow if other.kind == shape.kind]
            pairs.append(min(choices, key=lambda pair: pair.distance(shape.name), default=None))
        # what is another one's as it is hasn't become this one: then this one is gone, or new
        kept = {id(pair.partner) for pair in pairs if pair and pair.harmless and self.forms}
        return [pair if pair and (pair.harmless or id(pair.partner) not in kept) else None for pair in pairs]

    def _pair(self, lead: Shape, follow: Shape) -> tuple[Difference, ...]:
        old, new = (lead, follow) if self.side is Side.REQUEST else (follow, lead)
        found = [*self._scalars(old, new), *self._arrays(old, new), *self._objects(old, new)]
        if self.side is Side.REQUEST:
            found += map(_marked, most(old.most, new.most))
        named = (replace(one, name=old.name) if old.name and not one.name else one for one in found)
        return tuple(named)

    def _alone(self, shape: Shape, others: Iterable[Shape], what: str) -> Difference:
        if any(other.kind == shape.kind for other in others):
            form = shape.name or describe_shape(shape)
            return self._found(f"form-{what}", f"{form} is {_ADVERBS[what]} one of its forms", form)
        return self._found(f"type-{what}", f"it may {_ADVERBS[what]} be {describe_shape(shape)}", shape.kind)

    def _scalars(self, old: Shape, new: Shape) -> Iterator[Difference]:
        if old.whole != new.whole:
            yield self._limit(new.whole, "integers only" if new.whole else "fractions, too", "whole")
        for key in LOWER | UPPER:
            mine, its = old.bounds.get(key), new.bounds.get(key)
            if mine != its and old.values is None and new.values is None:
                now = f"{key} is {_limit_text(its)}, was {_limit_text(mine)}"
                yield self._limit(tighter(key, its, mine), now, key)
        yield from self._texts(old, new)
        yield from self._values(old, new)

    def _texts(self, old: Shape, new: Shape) -> Iterator[Difference]:
        for key in (*TEXTS, "oneOf"):
            mine, its = old.texts.get(key), new.texts.get(key)
            if mine == its:
                continue
            if mine and its:
                yield self._found("undecided", f"whether {key} means the same can't be told", key)
            else:
                yield self._limit(its is not None, f"{key} is {its or 'gone'}", key)

    def _values(self, old: Shape, new: Shape) -> Iterator[Difference]:
        if old.values is None and new.values is None:
            return
        if old.values is None:
            yield self._limit(True, f"only {_words(new.values)}", "values")
        if new.values is None:
            yield self._limit(False, f"not only {_words(old.values)}", "values")
        for value in old.values or ():
            if not new.takes(value):
                yield self._found("value-removed", f"{json.dumps(value)} is gone", json.dumps(value))
        for value in new.values or ():
            if old.values is not None and not old.takes(value):
                yield self._found("value-added", f"{json.dumps(value)} is new", json.dumps(value))

    def _arrays(self, old: Shape, new: Shape) -> Iterator[Difference]:
        if old.kind == "array":
            yield from (found.below("*") for found in self.differences(old.items, new.items))

    def _objects(self, old: Shape, new: Shape) -> Iterator[Difference]:
        if old.kind != "object":
            return
        yield from self._rest(old, new)
        for name, member in old.members.items():
            if name not in new.members:
                yield self._removed(new, self.old.told(member)).below(name)
        for name, member in new.members.items():
            if name not in old.members:
                yield self._added(name, old, new, self.new.told(member)).below(name)
                continue
            mine = old.members[name]
            yield from (found.below(name) for found in self.differences(mine, member))
            for mark in marks(self.old.told(mine), self.new.told(member), self.side == Side.REQUEST):
                yield _marked(mark).below(name)
            if (name in old.required) != (name in new.required):
                yield self._presence(name in new.required).below(name)

    def _rest(self, old: Shape, new: Shape) -> Iterator[Difference]:
        if old.rest is None or new.rest is None:
            if old.rest != new.rest:
                yield self._limit(new.rest is None, "members that aren't named", "rest")
            return
        yield from (found.below("{}") for found in self.differences(old.rest, new.rest))

    def _presence(self, required: bool) -> Difference:
        word = "needed" if self.side is Side.REQUEST else "there"
        if required:
            return self._found("member-required", f"it is always {word}")
        return self._found("member-optional", f"it isn't always {word}")

    def _removed(self, new: Shape, told: Node) -> Difference:
        if self.side is Side.REQUEST and new.rest is not None:
            mark = removed_member(told)
            return replace(_marked(mark), rule="member-removed", detail="")
        return self._found("member-removed", "it isn't there any more")

    def _added(self, name: str, old: Shape, new: Shape, told: Node) -> Difference:
        if self.side is Side.REQUEST and name in new.required:
            return self._found("member-required", "it is new, and requests without it are refused")
        if self.side is Side.REQUEST:
            return replace(_marked(added_member(told)), detail="")
        if old.rest is None:
            found = self._found("member-added", "it is new, and there were to be no others")
            return replace(found, level=MAJOR)
        return self._found("member-added", "it is new")

    def _limit(self, narrower: bool, message: str, detail: str) -> Difference:
        return self._found("narrower" if narrower else "wider", message, detail)

    def _found(self, rule: str, message: str, detail: str = "") -> Difference:
        level = LEVELS[rule][self.side is Side.RESPONSE]
        return Difference(rule, level, message, detail=detail)


def describe_shape(shape: Shape) -> str:
    """Say in a few words what a shape takes."""
    if shape.values is not None:
        return _words(shape.values)
    word = "integer" if shape.whole else {"string": "text"}.get(shape.kind, shape.kind)
    limits = [
        f" {text[left_out]} {limit}"
        for bounds, text in ((LOWER, ("from", "above")), (UPPER, ("to", "below")))
        for key, (limit, left_out) in shape.bounds.items()
        if key in bounds
    ]
    unit = {"string": " characters", "array": " elements", "object": " members"}.get(shape.kind, "")
    return word + "".join(limits) + (unit if limits else "")


_ADVERBS = {"removed": "no longer", "added": "now"}


def _words(values: Iterable[Any] | None) -> str:
    return " or ".join(json.dumps(value) for value in values or ())


def _limit_text(bound: Bound | None) -> str:
    if bound is None:
        return "none"
    return f"{bound[0]}, itself left out" if bound[1] else f"{bound[0]}"


def _marked(mark: Mark) -> Difference:
    return Difference(mark.rule, mark.level, mark.message, detail=mark.detail)
