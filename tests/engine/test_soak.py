"""Requests of every kind, some cancelled, on a cache that is too small: nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio

import pytest

from benchmarks.soak import make_config, run

SEQUENCES = 300


@pytest.mark.slow
@pytest.mark.parametrize("speculate", [0, 4], ids=["plain", "guessing"])
@pytest.mark.parametrize("separate_process", [False, True], ids=["thread", "process"])
def test_short_soak(separate_process: bool, speculate: int) -> None:
    config = make_config(separate_process=separate_process, threads=1, speculate=speculate)
    report = asyncio.run(run(config, SEQUENCES, seed=1, show=print))
    assert report.faults == []
    assert report.ended.total() == SEQUENCES
    assert report.ended["finished"] > 0.7 * SEQUENCES
    # Else it is no soak
    assert min(report.ended["cancelled"], report.ended["refused"], report.repeated) > 0
    assert min(report.preempted, report.cached_tokens, report.overloads) > 0
    assert not [line for line in report.grown if "files" in line]
