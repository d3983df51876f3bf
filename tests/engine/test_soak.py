"""Requests of every kind, some cancelled, on a cache that is too small: nothing is lost, nothing is left."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from benchmarks.soak import make_config, run, with_adapters

pytestmark = pytest.mark.slow

SEQUENCES = 300


@pytest.mark.parametrize("special", [False, True], ids=["plain", "guessing, with adapters"])
@pytest.mark.parametrize("separate_process", [False, True], ids=["thread", "process"])
def test_short_soak(separate_process: bool, special: bool, tmp_path: Path) -> None:
    adapters = with_adapters(None, tmp_path, 2) if special else ()
    speculate = 4 if special else 0
    config = make_config(separate_process=separate_process, threads=1, speculate=speculate, adapters=adapters)
    report = asyncio.run(run(config, SEQUENCES, seed=1, show=print))
    assert report.faults == []
    assert report.ended.total() == SEQUENCES
    assert report.ended["finished"] > 0.7 * SEQUENCES
    # Else it is no soak
    assert min(report.ended["cancelled"], report.ended["refused"], report.repeated) > 0
    assert min(report.preempted, report.cached_tokens, report.overloads) > 0
    assert not [line for line in report.grown if "files" in line]
