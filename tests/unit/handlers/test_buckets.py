from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, Histogram

from handlers.buckets import Histograms

numbers = st.floats(min_value=0, max_value=1e6)  # as durations and counts are


@given(bounds=st.lists(numbers, min_size=1, max_size=20, unique=True).map(sorted), values=st.lists(numbers))
def test_a_histogram_shows_what_the_librarys_own_would(bounds: list[float], values: list[float]) -> None:
    theirs = Histogram("name", "meaning", registry=CollectorRegistry(), buckets=bounds)
    ours = Histograms("name", "meaning", bounds, ())
    histogram = ours.labels()
    for value in values:
        theirs.observe(value)
        histogram.observe(value)
    expected = {(s.name, s.labels.get("le")): s.value for s in next(iter(theirs.collect())).samples}
    shown = {(s.name, s.labels.get("le")): s.value for s in next(iter(ours.collect())).samples}
    assert {key: value for key, value in expected.items() if key[0] != "name_created"} == pytest.approx(shown)


def test_each_value_of_a_label_has_a_histogram_of_its_own() -> None:
    histograms = Histograms("name", "meaning", [1.0], ["method"])
    histograms.labels("prefill").observe(0.5)
    histograms.labels("decode").observe(3.0)
    (family,) = histograms.collect()
    sums = {s.labels["method"]: s.value for s in family.samples if s.name == "name_sum"}
    assert sums == {"prefill": 0.5, "decode": 3.0}
