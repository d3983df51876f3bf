"""Grafana's boards, TGI's and ours, show what a running server exports."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from handlers.metrics.table import table
from tests.deploy.promql import NotPromQL, Query, Sample, mismatched, read, selected

# beside the checkout, or where the variable says: TGI's own board
REFERENCE = Path(os.environ.get("PARLEY_TEST_REFERENCE", Path(__file__).parents[3] / "shared" / "reference"))
TGIS = REFERENCE / "corpora" / "tgi_grafana.json"
OURS = Path(__file__).parents[2] / "deploy" / "grafana" / "parley.json"

UNFED = {  # panels of TGI's board that TGI itself doesn't feed
    "Speculated Tokens": "TGI 3 shows tgi_request_skipped_tokens as a summary; its board asks for buckets",
}
# panels of ours whose event this traffic hasn't: nobody was refused, preempted, guessed, or found in a cache
UNEVENTFUL = {
    "Refused as overloaded",
    "Preempted",
    "Engine restarts",
    "Prefix cache",
    "Computed again after a fault",
    "Guessed ahead",
    "Tokens by guesses",
    "Lines of the log dropped",
}


def panels(board: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield the title and the queries of each panel, those in collapsed rows among them."""

    def walk(found: list[dict[str, Any]]) -> Iterator[tuple[str, list[str]]]:
        for panel in found:
            if panel["type"] != "row":
                yield panel["title"], [t["expr"] for t in panel["targets"] if t.get("expr")]
            yield from walk(panel.get("panels", []))

    yield from walk(json.loads(board.read_text())["panels"])


def with_variables(query: str) -> str:
    """Put in what a viewer has chosen."""
    return query.replace("$service", "parley").replace("$job", ".+").replace("$instance", ".+")


def shown(query: Query, samples: list[Sample]) -> bool:
    """Return whether a query has something to draw; counts and buckets must have counted something."""
    kinds = {row["name"]: row["type"] for row in table()["metrics"]}
    for selector, found in selected(query, samples).items():
        if not found:
            return False
        if kinds.get(selector.name) != "gauge" and not any(each.value for each in found):
            return False
    return True


def missing(query: Query, samples: list[Sample]) -> list[str]:
    """Return which series and which labels of a query aren't exported."""
    found = selected(query, samples)
    lacking = [str(selector) for selector, hits in found.items() if not hits]
    for label in query.grouping:
        lacking += [
            f"{label} of {each.name}"
            for hits in found.values()
            for each in hits[:1]
            if label not in each.labels
        ]
    return lacking


@pytest.mark.skipif(not TGIS.is_file(), reason=f"TGI's board is not at {TGIS}")
def test_every_panel_of_tgis_board_that_tgi_fed_shows_data(samples: list[Sample]) -> None:
    every = list(panels(TGIS))
    assert 25 < len(every)
    dark = {
        title
        for title, queries in every
        if not all(shown(read(with_variables(query)), samples) for query in queries)
    }
    assert UNFED.keys() == dark


def test_every_series_and_label_of_our_board_is_exported(samples: list[Sample]) -> None:
    lacking = [
        (title, missing(read(with_variables(query)), samples))
        for title, queries in panels(OURS)
        for query in queries
    ]
    assert 40 < len(lacking)
    assert [] == [(title, what) for title, what in lacking if what]


def test_the_sides_of_an_operator_on_our_board_have_the_same_labels(samples: list[Sample]) -> None:
    queries = [read(with_variables(query)) for _, each in panels(OURS) for query in each]
    assert 5 < sum(len(query.joins) for query in queries)
    assert [] == [fault for query in queries for fault in mismatched(query, samples)]


def test_our_board_shows_data_wherever_something_has_happened(samples: list[Sample]) -> None:
    dark = {
        title
        for title, queries in panels(OURS)
        if not any(shown(read(with_variables(query)), samples) for query in queries)
    }
    assert UNEVENTFUL == dark


def test_our_board_has_every_metric_of_our_own_and_the_fed_ones_of_tgi() -> None:
    queries = " ".join(query for _, each in panels(OURS) for query in each)
    fed = [row["name"] for row in table()["metrics"] if row["fed"] is True]
    # a generation's inference time is the whole less what the board shows beside it
    left_out = {"tgi_request_inference_duration", "tgi_request_mean_time_per_token_duration"}
    assert left_out == {name for name in fed if name not in queries}


def test_panels_of_our_board_do_not_overlap_and_stay_in_the_grid() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in json.loads(OURS.read_text())["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {(place["x"] + x, place["y"] + y) for x in range(place["w"]) for y in range(place["h"])}
        assert not cells & taken
        taken |= cells


@pytest.mark.parametrize(
    "broken",
    ["sum(rate(a[5m])", "rate(a)", "median(a)", "a{b}", "a{b='c'}", "sum by le (a)", "a + ", "a b", "a[5x]"],
)
def test_what_prometheus_would_refuse_is_no_query(broken: str) -> None:
    with pytest.raises(NotPromQL):
        read(broken)


def test_a_query_selects_by_all_of_its_matchers() -> None:
    query = read('sum by (le) (rate(a_bucket{m="x", n=~"1.*", o!="p"}[5m])) / vector(2)')
    assert {"le"} == query.grouping
    labels = {"m": "x", "n": "10"}
    hits = [
        Sample("a_bucket", labels, 1.0),
        Sample("a_bucket", labels | {"o": "p"}, 1.0),
        Sample("a", labels, 1.0),
    ]
    ((_, found),) = selected(query, hits).items()
    assert hits[:1] == found


@pytest.mark.parametrize(
    ("text", "fits"),
    [
        ("a > 0 and b > 0.9", False),
        ("a > 0 and ignoring(m) b > 0.9", True),
        ("a > 0 and on(job) b > 0.9", True),
        ("a > 0 and on(m) b", False),
        ("a / b", False),
        ("sum by (job) (a) / sum by (job) (rate(b[5m])) > 0.1", True),
        ("sum by (job, m) (a) / sum(b)", False),
        ("sum(a) / sum(b) + 1", True),
        ("1 - sum(a) / sum by (job) (b)", False),
        ("histogram_quantile(0.9, sum by (le, job) (rate(c[5m]))) > sum by (job) (b)", True),
        ("c + b", False),
        ("(a * ignoring(m) b) / b", True),
        ("(a and ignoring(m) b) / b", False),
        ("clamp_min(b, 1) unless b == 2 or b", True),
        ("sum(b) or vector(0)", True),
    ],
)
def test_sides_whose_series_never_meet_are_found(text: str, fits: bool) -> None:
    of = {"a": {"job", "m"}, "b": {"job"}, "c": {"job", "le"}}
    samples = [Sample(name, dict.fromkeys(labels, "x"), 1.0) for name, labels in of.items()]
    assert fits is not bool(mismatched(read(text), samples))
