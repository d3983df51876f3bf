from __future__ import annotations

from array import array

import pytest
from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client import Histogram as TheirHistogram

from handlers.metrics.buckets import Histogram, cumulated

numbers = st.floats(min_value=0, max_value=1e6)  # as durations and counts are


@given(bounds=st.lists(numbers, min_size=1, max_size=20, unique=True).map(sorted), values=st.lists(numbers))
def test_a_histogram_counts_as_the_clients_library_does(bounds: list[float], values: list[float]) -> None:
    theirs = TheirHistogram("name", "meaning", registry=CollectorRegistry(), buckets=bounds)
    row = memoryview(array("d", [0.0] * (len(bounds) + 2))).cast("B").cast("d")
    histogram = Histogram(bounds, row)
    for value in values:
        theirs.observe(value)
        histogram.observe(value)
    samples = next(iter(theirs.collect())).samples
    assert cumulated(row[:-1]) == [s.value for s in samples if s.name == "name_bucket"]
    assert [row[-1]] == pytest.approx([s.value for s in samples if s.name == "name_sum"])
