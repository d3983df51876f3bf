"""What changed in the settings: deployments give them by flag and by variable, and on their defaults."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from codegen.change import Change, Level

Row = Mapping[str, Any]

PATCH, MINOR, MAJOR = Level.PATCH, Level.MINOR, Level.MAJOR
EXACT = {  # what has no order in which one value includes another
    "default": "setting-default-changed",
    "unit": "setting-unit-changed",
    "winning": "setting-winning-variable-changed",
    "empty_is_refused": "setting-empty-changed",
}
STRENGTH = ("later", "accepted", "honoured")


def setting_changes(old: Mapping[str, Row], new: Mapping[str, Row]) -> list[Change]:
    """Return what changed between two versions of the settings, each as `settings_data.describe` has them."""
    found = [
        _change("setting-removed", name, MAJOR, "it isn't there any more") for name in old.keys() - new.keys()
    ]
    found += [_change("setting-added", name, MINOR, "it is new") for name in new.keys() - old.keys()]
    for name in old.keys() & new.keys():
        found += _names(name, old[name], new[name])
        found += _meaning(name, old[name], new[name])
        found += _value(name, old[name]["value"], new[name]["value"])
    return sorted(found)


def _names(name: str, old: Row, new: Row) -> Iterator[Change]:
    for kind, word in (("flags", "flag"), ("variables", "variable")):
        before: Sequence[str] = old.get(kind, [])
        after: Sequence[str] = new.get(kind, [])
        for gone in {*before} - {*after}:
            yield _change(f"setting-{word}-removed", name, MAJOR, f"{gone} isn't read any more", gone)
        for come in {*after} - {*before}:
            yield _change(f"setting-{word}-added", name, MINOR, f"{come} is read, too", come)
        if word == "variable" and _shared(before, after) != _shared(after, before):
            yield _change("setting-order-changed", name, MAJOR, f"of several, {after[0]} counts first now")


def _meaning(name: str, old: Row, new: Row) -> Iterator[Change]:
    for key, rule in EXACT.items():
        if old.get(key) != new.get(key):
            yield _change(rule, name, MAJOR, f"it is {new.get(key)!r}, was {old.get(key)!r}")
    if old["support"] != new["support"]:
        weaker = STRENGTH.index(new["support"]) < STRENGTH.index(old["support"])
        rule, level = ("withdrawn", MAJOR) if weaker else ("added", MINOR)
        yield _change(f"setting-support-{rule}", name, level, f"it is {new['support']}, was {old['support']}")
    if old.get("exclusive") != new.get("exclusive"):
        level = MAJOR if new.get("exclusive") else MINOR
        yield _change("setting-exclusive-changed", name, level, "whether it may be named twice")
    if new["support"] == "later":
        for value in {*old.get("neutral", ())} - {*new.get("neutral", ())}:
            yield _change("setting-neutral-removed", name, MAJOR, f"{value} is refused", value)
    for value in {*new.get("neutral", ())} - {*old.get("neutral", ())}:
        yield _change("setting-neutral-added", name, MINOR, f"{value} is taken", value)


def _value(name: str, old: Row, new: Row) -> Iterator[Change]:
    if old["kind"] != new["kind"] or old.get("refusal") != new.get("refusal"):
        message = f"it is read as {_told(new)}, was as {_told(old)}; whether that takes less can't be told"
        yield _change("setting-value-changed", name, MAJOR, message)
        return
    for choice in {*old.get("choices", ())} - {*new.get("choices", ())}:
        yield _change("setting-choice-removed", name, MAJOR, f"{choice} is refused", choice)
    for choice in {*new.get("choices", ())} - {*old.get("choices", ())}:
        yield _change("setting-choice-added", name, MINOR, f"{choice} is taken", choice)
    for key, sign, exclusive in (("minimum", 1, "above"), ("maximum", -1, "below")):
        before, after = (_bound(row, key, exclusive, sign) for row in (old, new))
        if before != after:
            rule, level = ("narrowed", MAJOR) if after > before else ("widened", MINOR)
            message = f"{key} is {new.get(key, 'none')}, was {old.get(key, 'none')}"
            yield _change(f"setting-{rule}", name, level, message, key)
    if old.get("zero") != new.get("zero") and _takes_zero(old) != _takes_zero(new):
        rule, level, word = ("widened", MINOR, "taken") if new.get("zero") else ("narrowed", MAJOR, "refused")
        yield _change(f"setting-{rule}", name, level, f"0 is {word}", "zero")


def _bound(row: Row, key: str, exclusive: str, sign: int) -> tuple[float, bool]:
    """Return a bound so that the greater of two takes less."""
    return sign * row.get(key, -sign * float("inf")), bool(row.get(exclusive, False))


def _takes_zero(row: Row) -> bool:
    """Return whether 0 is taken, beside the bounds or between them."""
    low, high = _bound(row, "minimum", "above", 1), _bound(row, "maximum", "below", -1)
    return bool(row.get("zero")) or max(low, high) <= (0, False)


def _shared(one: Sequence[str], other: Sequence[str]) -> list[str]:
    return [name for name in one if name in other]


def _told(value: Row) -> str:
    return f"{value['kind']} ({value['refusal']})" if "refusal" in value else str(value["kind"])


def _change(rule: str, name: str, level: Level, message: str, detail: str = "") -> Change:
    return Change(" ".join(filter(None, (rule, name, detail))), level, message)
