"""Prometheus' rules: well-formed, on series that a running server exports, with labels to be named."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.deploy.promql import Sample, mismatched, read, selected

RULES = Path(__file__).parents[2] / "deploy" / "prometheus" / "alerts.yaml"
GROUPS: list[dict[str, Any]] = yaml.safe_load(RULES.read_text())["groups"]
EVERY = [rule for group in GROUPS for rule in group["rules"]]
ALERTS = [rule for rule in EVERY if "alert" in rule]
RECORDED = {rule["record"]: rule["expr"] for rule in EVERY if "record" in rule}
DURATION = re.compile(r"\d+[smhd]")
FILTERS = {"humanize", "humanizePercentage", "humanizeDuration"}


def expanded(expression: str) -> str:
    """Put in what recorded rules stand for."""
    for name, of in RECORDED.items():
        expression = expression.replace(name, f"({of})")
    return expression


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.get("alert") or rule["record"])
def test_an_expression_selects_what_is_exported(rule: dict[str, Any], samples: list[Sample]) -> None:
    found = selected(read(expanded(rule["expr"])), samples)
    assert found
    assert all(found.values()), [selector for selector, hits in found.items() if not hits]


@pytest.mark.parametrize("rule", EVERY, ids=lambda rule: rule.get("alert") or rule["record"])
def test_the_sides_of_an_operator_have_the_same_labels(rule: dict[str, Any], samples: list[Sample]) -> None:
    assert [] == mismatched(read(expanded(rule["expr"])), samples)


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_an_alert_says_how_bad_it_is_and_what_to_do(rule: dict[str, Any]) -> None:
    assert {"alert", "expr", "labels", "annotations"} == rule.keys() - {"for"}
    assert rule["labels"]["severity"] in {"critical", "warning"}
    assert {"summary", "description"} == rule["annotations"].keys()
    assert DURATION.fullmatch(rule.get("for", "1m"))


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_a_message_names_labels_that_its_expression_keeps(
    rule: dict[str, Any], samples: list[Sample]
) -> None:
    query = read(expanded(rule["expr"]))
    hits = next(iter(selected(query, samples).values()))
    kept = query.grouping - {"le"} if query.grouping else set(hits[0].labels)
    for text in rule["annotations"].values():
        for inside in re.findall(r"\{\{(.*?)\}\}", text):
            value, *filters = (part.strip() for part in inside.split("|"))
            assert set(filters) <= FILTERS
            assert value == "$value" or value.removeprefix("$labels.") in kept


def test_names_are_told_once_and_recorded_ones_by_convention() -> None:
    names = [rule.get("alert") or rule["record"] for rule in EVERY]
    assert len(names) == len(set(names))
    assert all(re.fullmatch(r"[a-z_]+:[a-z_]+:[a-z0-9_]+", name) for name in RECORDED)
