"""What changed in the metrics: dashboards, alerts and autoscalers read them by name, label and bucket."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from codegen.change import Change, Level
from handlers.metrics.table import label_names

Node = Mapping[str, Any]

PATCH, MINOR, MAJOR = Level.PATCH, Level.MINOR, Level.MAJOR


def metric_changes(old: Node, new: Node) -> list[Change]:
    """Return what changed between two versions of metrics.yaml."""
    before, after = ({row["name"]: row for row in table["metrics"]} for table in (old, new))
    gone, come = before.keys() - after.keys(), after.keys() - before.keys()
    found = [_change(name, "metric-removed", MAJOR, "it isn't there any more") for name in gone]
    found += [_change(name, "metric-added", MINOR, "it is new") for name in come]
    for name in before.keys() & after.keys():
        found += _metric(name, before[name], after[name])
        found += _buckets(name, _bounds(old, before[name]), _bounds(new, after[name]))
    return sorted(found)


def _metric(name: str, old: Node, new: Node) -> Iterator[Change]:
    for key in ("type", "unit"):
        if old[key] != new[key]:
            yield _change(name, f"metric-{key}-changed", MAJOR, f"it is {new[key]}, was {old[key]}")
    if old["fed"] is True and new["fed"] is not True:
        yield _change(name, "metric-idle", MAJOR, f"no value comes in any more: {new['fed']}")
    if old["fed"] is not True and new["fed"] is True:
        yield _change(name, "metric-fed", MINOR, "it has values now")
    before, after = _labels(old), _labels(new)
    for label in before.keys() ^ after.keys():
        # with a label more, whoever selected one series gets several
        message = f"{label} isn't there any more" if label in before else f"{label} is new"
        yield _change(name, "metric-labels-changed", MAJOR, message, label)
    for label in before.keys() & after.keys():
        for value in {*before[label]} - {*after[label]}:
            message = f"{label} is never {value} any more"
            yield _change(name, "metric-label-value-removed", MAJOR, message, f"{label} {value}")
        for value in {*after[label]} - {*before[label]}:
            message = f"{label} may be {value}"
            yield _change(name, "metric-label-value-added", MINOR, message, f"{label} {value}")


def _labels(row: Node) -> dict[str, list[str]]:
    """Return each label with its values, none where these are known at run time only."""
    return {name: row.get("labels", {}).get(name, []) for name in label_names(row)}


def _buckets(name: str, old: Node | None, new: Node | None) -> Iterator[Change]:
    if old != new:
        yield _change(name, "metric-buckets-changed", MAJOR, f"its bounds are {new}, were {old}")


def _bounds(table: Node, row: Node) -> Node | None:
    """Return the rule of a histogram's buckets: the name of the set isn't shown to anybody."""
    rule: Node | None = table["buckets"][row["buckets"]] if "buckets" in row else None
    return rule


def _change(name: str, rule: str, level: Level, message: str, detail: str = "") -> Change:
    return Change(" ".join(filter(None, (rule, name, detail))), level, message)
