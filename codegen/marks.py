"""What the contract's own marks at a member promise, `x-support` and others, and what their changes weigh."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from codegen.change import Level

Node = Mapping[str, Any]

PATCH, MINOR, MAJOR = Level.PATCH, Level.MINOR, Level.MAJOR
EFFECTIVE = ("honoured", "descriptive")
TAKEN = (*EFFECTIVE, "reported")


class Mark(NamedTuple):
    """A mark that changed, or what the marks of a member that came or went make of that."""

    rule: str
    level: Level
    message: str
    detail: str = ""


def marks(old: Node, new: Node, request: bool) -> Iterator[Mark]:
    """Yield what changed at a member that stays; `old` and `new` are its keywords, references followed."""
    yield from _known_words(old, new)
    if not old.get("deprecated") and new.get("deprecated"):
        yield Mark("deprecated", MINOR, "it is announced to go")
    if not request:
        return
    yield from _support(old, new)
    yield from _neutral(old, new)
    yield from _default(old, new)
    yield from _exclusions(old, new)
    yield from _idle(old, new)
    if old.get("x-range") != new.get("x-range"):
        became = f"{old.get('x-range')!r} became {new.get('x-range')!r}"
        yield Mark("range-changed", MAJOR, f"{became}; whether that takes less can't be told")
    if old.get("x-error") != new.get("x-error"):
        yield Mark("refusal-changed", MINOR, "its refusal has other words")


def most(before: int | None, after: int | None) -> Iterator[Mark]:
    """Yield what changed in how many items an array, or members an object, may have: `x-most`."""
    if before == after:
        return
    if after is not None and (before is None or after < before):
        yield Mark("most-lowered", MAJOR, f"it may have {after} elements, and had {before or 'no bound'}")
    else:
        yield Mark("most-raised", MINOR, f"it may have {after or 'any number of'} elements, and had {before}")


def removed_member(old: Node) -> Mark:
    """Say what it means that a request's member isn't known any more: it is taken, and reported."""
    support = old.get("x-support", "honoured")
    if support in EFFECTIVE:
        return Mark("member-removed", MAJOR, "it isn't known any more, and has no effect")
    if support == "reported":
        return Mark("member-removed", PATCH, "it had no effect, and isn't known any more")
    return Mark("member-removed", MINOR, "it was refused, and is taken without effect")


def added_member(new: Node) -> Mark:
    """Say what it means that a request's member is known now, which was taken and reported."""
    support = new.get("x-support", "honoured")
    if support in EFFECTIVE:
        return Mark("member-added", MINOR, "it is new")
    if support == "reported":
        return Mark("member-added", PATCH, "it is known now, and has no effect")
    return Mark("member-refused", MAJOR, "it was taken without effect, and is refused now")


def _support(old: Node, new: Node) -> Iterator[Mark]:
    before, after = old.get("x-support", "honoured"), new.get("x-support", "honoured")
    if before == after:
        return
    message = f"it was {before}, and is {after}"
    if before in TAKEN and after not in TAKEN:
        yield Mark("support-withdrawn", MAJOR, f"{message}: requests that have it fail")
    elif before in EFFECTIVE and after == "reported":
        yield Mark("support-withdrawn", MAJOR, f"{message}: it has no effect any more")
    else:
        yield Mark("support-added", MINOR, message)


def _neutral(old: Node, new: Node) -> Iterator[Mark]:
    before, after = _texts("x-neutral", old), _texts("x-neutral", new)
    # of a member that has an effect now all values are taken, but a neutral one excludes no other member
    if new.get("x-support", "honoured") not in EFFECTIVE or new.get("x-excludes"):
        for value in sorted(before - after):
            yield Mark("neutral-removed", MAJOR, f"{value} isn't taken as asking for nothing any more", value)
    for value in sorted(after - before):
        yield Mark("neutral-added", MINOR, f"{value} is taken as asking for nothing now", value)


def _idle(old: Node, new: Node) -> Iterator[Mark]:
    before, after = _texts("x-without-effect", old), _texts("x-without-effect", new)
    for name in sorted(after - before):
        yield Mark("effect-removed", MAJOR, f"its {name} has no effect here any more", name)
    for name in sorted(before - after):
        yield Mark("effect-added", MINOR, f"its {name} has an effect here now", name)


def _default(old: Node, new: Node) -> Iterator[Mark]:
    if old.get("x-default") != new.get("x-default") or ("x-default" in old) != ("x-default" in new):
        before, after = (json.dumps(node.get("x-default")) for node in (old, new))
        yield Mark("default-changed", MAJOR, f"without it the value was {before}, and is {after}")


def _exclusions(old: Node, new: Node) -> Iterator[Mark]:
    before, after = old.get("x-excludes", {}), new.get("x-excludes", {})
    for name in sorted(after.keys() - before.keys()):
        yield Mark("exclusion-added", MAJOR, f"it can't stand beside {name} any more", name)
    for name in sorted(before.keys() - after.keys()):
        yield Mark("exclusion-removed", MINOR, f"it may stand beside {name}", name)
    by, now_by = old.get("x-excludes-unless"), new.get("x-excludes-unless")
    if by != now_by and before.keys() & after.keys():
        if by is not None:
            yield Mark("lifting-removed", MAJOR, f"{by} lets it stand beside others no more", by)
        if now_by is not None:
            yield Mark("lifting-added", MINOR, f"{now_by} lets it stand beside others", now_by)


def _known_words(old: Node, new: Node) -> Iterator[Mark]:
    before, after = (set(node.get("x-extensible-enum", ())) for node in (old, new))
    for word in sorted(before - after):
        yield Mark("known-word-removed", MAJOR, f"{word!r} isn't said any more", word)
    for word in sorted(after - before):
        yield Mark("known-word-added", MINOR, f"{word!r} may be said; the set is open", word)


def _texts(key: str, node: Node) -> set[str]:
    return {json.dumps(value, sort_keys=True) for value in node.get(key, ())}
