"""The committed file of what servers reached beside each other."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.serving import results
from benchmarks.serving.records import Key, WorkFile

MODEL, OTHER = "llama-135m", "qwen2-0.5b"
LIMITS = {"read_bytes": 4e10, "float_flops": 2e11, "bfloat16_flops": 4e11, "int8_flops": 9e11}


def measured(work: WorkFile, server: str, rate: float, model: str = MODEL) -> None:
    ones = dict.fromkeys(("requests", "seconds", "ttft_ms", "itl_p99_ms", "peak_mb"), 1.0)
    fixed = {"repetition": 0, "other_share": 0.0, "failures": [], "texts": ["a"], "tokens_per_second": rate}
    work.add(Key(model, server), start={"seconds": 1.0, "peak_mb": 5.0})
    work.add(Key(model, server), workload="c1", result={**ones, **fixed})


def written(work: WorkFile, folder: Path) -> dict[str, Any]:
    results.write_results(work, folder, 1)
    (file,) = folder.glob("serving-*.json")
    found: dict[str, Any] = json.loads(file.read_text())
    return found


def rates(table: dict[str, Any], model: str = MODEL) -> dict[str, float]:
    servers = table["models"][model]["servers"]
    return {label: row["workloads"]["c1"]["tokens_per_second"] for label, row in servers.items()}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(results, "RESULTS", tmp_path)
    return tmp_path


def test_a_server_measured_again_leaves_the_others_rows_where_their_records_are_gone(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(time, "strftime", lambda _: "2026-01-01")
    first = WorkFile(folder / "first.jsonl")
    measured(first, "parley f32", 20.0)
    measured(first, "llama.cpp f32", 10.0)
    measured(first, "parley f32", 2.0, OTHER)
    first.add(Key(OTHER, "parley f32"), limits=LIMITS)
    assert rates(written(first, folder)) == {"parley f32": 20.0, "llama.cpp f32": 10.0}
    monkeypatch.setattr(time, "strftime", lambda _: "2026-01-02")
    second = WorkFile(folder / "second.jsonl")
    measured(second, "parley f32", 30.0)
    table = written(second, folder)
    assert rates(table) == {"parley f32": 30.0, "llama.cpp f32": 10.0}
    days = {label: row["day"] for label, row in table["models"][MODEL]["servers"].items()}
    assert days == {"parley f32": "2026-01-02", "llama.cpp f32": "2026-01-01"}
    assert rates(table, OTHER) == {"parley f32": 2.0}
    assert table["models"][OTHER]["limits"] == LIMITS
    (goal,) = (g for g in table["models"][MODEL]["goals"] if (g["what"], g["unit"]) == ("c1, fp32", "tok/s"))
    assert goal["ratio"] == pytest.approx(3.0)


def test_writing_what_is_known_again_changes_nothing(folder: Path) -> None:
    work = WorkFile(folder / "work.jsonl")
    measured(work, "parley int8", 20.0)
    measured(work, "llama.cpp q8_0", 10.0)
    assert written(work, folder) == written(WorkFile(folder / "none.jsonl"), folder)
