"""Each rule on metrics, seen on a change that is made in metrics.yaml."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

import openapi
from codegen.breaking_metrics import metric_changes
from openapi.yamlload import parse

OLD = parse(openapi.text("metrics.yaml"))
Edit = Callable[[Any], object]


def changes(edit: Edit) -> dict[str, str]:
    new = deepcopy(OLD)
    edit(new)
    return {change.key: change.level.name for change in metric_changes(OLD, new)}


def metric(table: Any, name: str) -> Any:
    return next(row for row in table["metrics"] if row["name"] == name)


@pytest.mark.parametrize(
    ("edit", "key", "level"),
    [
        (lambda t: t["metrics"].pop(0), "metric-removed tgi_request_count", "MAJOR"),
        (lambda t: t["metrics"].append({**t["metrics"][0], "name": "new"}), "metric-added new", "MINOR"),
        (
            lambda t: metric(t, "tgi_queue_size").update(type="counter"),
            "metric-type-changed tgi_queue_size",
            "MAJOR",
        ),
        (
            lambda t: metric(t, "tgi_request_duration").update(unit="milliseconds"),
            "metric-unit-changed tgi_request_duration",
            "MAJOR",
        ),
        (
            lambda t: metric(t, "tgi_request_count").update(labels={"route": ["a"]}),
            "metric-labels-changed tgi_request_count route",
            "MAJOR",
        ),
        (
            lambda t: metric(t, "tgi_request_failure").pop("labels"),
            "metric-labels-changed tgi_request_failure err",
            "MAJOR",
        ),
        (
            lambda t: metric(t, "tgi_request_failure")["labels"]["err"].remove("dropped"),
            "metric-label-value-removed tgi_request_failure err dropped",
            "MAJOR",
        ),
        (
            lambda t: metric(t, "tgi_request_failure")["labels"]["err"].append("new"),
            "metric-label-value-added tgi_request_failure err new",
            "MINOR",
        ),
        (
            lambda t: t["buckets"]["requests"].update(count=9),
            "metric-buckets-changed tgi_batch_next_size",
            "MAJOR",
        ),
        (
            lambda t: metric(t, "tgi_queue_size").update(fed="nobody counts"),
            "metric-idle tgi_queue_size",
            "MAJOR",
        ),
        (
            lambda t: metric(t, "tgi_batch_total_tokens").update(fed=True),
            "metric-fed tgi_batch_total_tokens",
            "MINOR",
        ),
    ],
)
def test_a_change_is_found(edit: Edit, key: str, level: str) -> None:
    assert changes(edit) == {key: level}


def _rename_buckets(table: Any) -> None:
    table["buckets"]["time"] = table["buckets"].pop("seconds")
    for row in table["metrics"]:
        if row.get("buckets") == "seconds":
            row["buckets"] = "time"


@pytest.mark.parametrize(
    "edit",
    [
        _rename_buckets,
        lambda t: metric(t, "tgi_queue_size").update(meaning="Other words."),
        lambda t: t["metrics"].reverse(),
        lambda t: metric(t, "tgi_batch_total_tokens").update(fed="other words"),
    ],
)
def test_what_nobody_can_see_is_no_change(edit: Edit) -> None:
    assert changes(edit) == {}
