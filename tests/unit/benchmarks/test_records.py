from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving.records import Key, WorkFile, clean, medians, percentile, same_texts, summarise
from benchmarks.serving.workloads import Workload

KEY = Key("model", "server")


def result(rate: float, *, other: float = 0.0, repetition: int = 0, texts: str = "ab") -> dict[str, Any]:
    return {
        "tokens_per_second": rate,
        "other_share": other,
        "repetition": repetition,
        "failures": [],
        "texts": list(texts),
    }


def test_a_work_file_is_read_again(tmp_path: Path) -> None:
    path = tmp_path / "results" / "work.jsonl"
    work = WorkFile(path)
    work.add(KEY, start={"seconds": 1.5})
    work.add(KEY, workload="c1", result=result(1))
    work.add(KEY, workload="c1", result=result(2))
    work.add(Key("model", "other"), workload="c1", result=result(3))
    for known in (work, WorkFile(path)):
        assert [1, 2] == [each["tokens_per_second"] for each in known.results(KEY, "c1")]
        assert known.last(KEY, "start") == {"seconds": 1.5}
        assert known.last(KEY, "failed") is None
        assert [KEY, Key("model", "other")] == known.servers()


def test_what_is_forgotten_stays_forgotten(tmp_path: Path) -> None:
    path = tmp_path / "work.jsonl"
    work = WorkFile(path)
    work.add(KEY, workload="c1", result=result(1))
    work.add(KEY, forgotten=True)
    work.add(KEY, workload="c1", result=result(2))
    assert [result(2)] == work.results(KEY, "c1") == WorkFile(path).results(KEY, "c1")


def test_a_server_that_is_gone_on_with_is_asked_nothing_twice(tmp_path: Path) -> None:
    """What it has seen it may have kept, and answer sooner."""
    work = WorkFile(tmp_path / "work.jsonl")
    assert work.next_repetition(KEY) == 0
    work.add(KEY, start={"seconds": 1.5})
    work.add(KEY, workload="c1", result=result(1, repetition=2))
    work.add(KEY, workload="prefix8", result=result(1, repetition=3))
    work.add(Key("model", "other"), workload="c1", result=result(3, repetition=7))
    assert work.next_repetition(KEY) == 4
    work.add(KEY, forgotten=True)
    assert work.next_repetition(KEY) == 0


def test_the_least_disturbed_repetitions_count() -> None:
    results = [result(1, other=0.9), result(10), result(20, other=0.05), result(30), result(2, other=0.5)]
    found = medians(results, 3)
    assert (found["tokens_per_second"], found["rates"], found["disturbed"]) == (20, [10, 20, 30], 0)
    assert medians(results, 4)["disturbed"] == 1
    assert 3 == len(clean(results))


def test_a_failed_repetition_is_not_clean() -> None:
    assert clean([{**result(1), "failures": ["late"]}]) == []


@pytest.mark.parametrize(
    ("values", "share", "found"), [([3, 1, 2], 0.5, 2), ([1, 2, 3, 4], 0.99, 4), ([5], 0.99, 5)]
)
def test_percentiles(values: list[float], share: float, found: float) -> None:
    assert found == percentile(values, share)


def test_a_percentile_of_nothing_is_not_a_number() -> None:
    assert math.isnan(percentile([], 0.5))


def test_a_repetition_is_summed_up() -> None:
    workload = Workload(name="x", clients=1, requests=2, own=3, output=4)
    answer = {"first": 0.5, "last": 0.8, "gaps": [0.1, 0.2], "tokens": 4, "prompt_tokens": 3, "text": "a"}
    raw = {
        "answers": [answer, {**answer, "first": 1.5}],
        "failures": [],
        "wall": 2.0,
        "cpu": 0.02,
        "server_cpu": 3.0,
    }
    raw |= {"other_share": 0.0, "stolen_share": 0.0, "peak_mb": 7.0, "pss_mb": 6.0}
    found = summarise(workload, 0, raw)
    assert (found["tokens_per_second"], found["first_wave_ttft_ms"], found["server_cores"]) == (
        4.0,
        500.0,
        1.5,
    )
    assert (found["itl_p99_ms"], found["failures"]) == (200.0, [])
    assert summarise(workload, 0, {**raw, "answers": [{**answer, "prompt_tokens": 9}]})["failures"] == [
        "prompts of [9] tokens in place of [3]"
    ]


def test_texts_are_compared_within_the_same_repetition() -> None:
    reference = [result(1, texts="ab"), result(1, repetition=1, texts="cd")]
    assert same_texts([result(1, repetition=1, texts="cx")], reference) == 0.5
    assert same_texts([result(1, repetition=2)], reference) is None
