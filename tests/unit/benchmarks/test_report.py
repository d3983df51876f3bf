from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import report
from benchmarks.machine import about

NUMBERS = {"tokens_per_second": 12.34, "ttft_ms": 100.0, "itl_p99_ms": 9.0, "failures": [], "same_texts": 0.5}
WORKLOAD = {
    "clients": 8,
    "requests": 16,
    "shared": 1024,
    "own": 32,
    "output": 32,
    "prefix_of": "",
    "own_of": "",
}
GOAL = {
    "what": "c1, fp32",
    "ours": "parley f32",
    "value": 30.0,
    "peer": "peer",
    "other": 20.0,
    "unit": "tok/s",
}
SERVING: dict[str, Any] = {
    "workloads": {"c1": WORKLOAD},
    "versions": {"peer f32": "version: 1.2"},
    "models": {
        "llama-135m": {
            "servers": {
                "parley f32": {"group": "fp32", "peak_mb": 900, "failed": None,
                               "workloads": {"c1": {**NUMBERS, "disturbed": 0}}},
                "busy": {"group": "fp32", "peak_mb": 100, "failed": None,
                         "workloads": {"c1": {**NUMBERS, "disturbed": 1}}},
                "gone": {"group": "int8", "peak_mb": 0, "failed": "missing: venvs/gone", "workloads": {}},
            },
            "goals": [{**GOAL, "ratio": 1.5, "goal": 1.5, "reached": True},
                      {**GOAL, "ratio": 1.1, "goal": 1.5, "reached": False}],
        }
    },
}  # fmt: skip
LIMITS = {"read_bytes": 24e9, "float_flops": 200e9, "bfloat16_flops": 400e9, "int8_flops": 800e9}
STEP = {"weights": "int8", "batch": 1, "context": 130.0, "step_ms": 8.0, "tokens_per_second": 125.0}
ROOFLINE = {
    "limits": LIMITS,
    "steps": [
        {
            **STEP,
            "read_bytes_per_second": 27.4e9,
            "roof_tokens_per_second": 150.0,
            "bound": "reading",
            "share": 0.83,
            "goal": 0.85,
        }
    ],
}
POINTS = [
    {"context": context, "batch": batch, "step_ms": 10.0 * batch, "tokens_per_second": 100.0}
    for context, batch in ((128, 1), (128, 64), (8192, 1))
]
SCALING = {"like": "a model", "weights": "bf16", "prefill_tokens_per_second": 900.0, "points": POINTS}

SOAK = {
    "sequences": 10_000,
    "seconds": 583.7,
    "ended": {"refused": 5, "finished": 8952},
    "grown": [],
    "overloads": 4069,
    "preempted": 301,
    "repeated": 278,
}


@pytest.fixture
def results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(report, "RESULTS", tmp_path)
    return tmp_path


def page(results: Path, **parts: dict[str, Any]) -> str:
    for part, content in parts.items():
        (results / f"{part}-here.json").write_text(json.dumps({**about(), **content}))
    return "\n".join(report.page("here"))


def test_all_machines_are_told_of_the_most_measured_first(results: Path) -> None:
    for name, parts in {"old": ["quality"], "new": ["quality", "scaling"]}.items():
        features = ["avx2", "avx512f"] if name == "new" else ["avx2"]
        for part in parts:
            content = SCALING if part == "scaling" else {"texts": len(name), "variants": {}}
            (results / f"{part}-{name}.json").write_text(
                json.dumps({**about(), **content, "features": features})
            )
    assert report.machines() == ["new", "old"]
    lines = list(report.page(*report.machines()))
    other = lines.index(f"# On another machine: {about()['cpu']}, without AVX-512")
    assert lines.index(next(line for line in lines if line.startswith("![tokens"))) < other
    assert any(line.startswith("Measured on ") and "(avx2)" in line for line in lines[other:])


def test_servers_goals_and_what_is_missing_are_told(results: Path) -> None:
    text = page(results, serving=SERVING)
    assert "| parley f32 | fp32 | 12.3 (100 / 9) |  |  |  | 900 | 50% |" in text
    assert "| busy | fp32 | 12.3 (100 / 9)* |" in text
    assert "| c1, fp32 | parley f32 | 30 tok/s | peer | 20 tok/s | 1.50 | ≥ 1.5 | reached |" in text
    assert "| 1.10 | ≥ 1.5 | **not reached** |" in text
    assert "Not measured: gone (missing)." in text
    assert "Peers: peer 1.2." in text


def test_a_throughput_is_shown_beside_its_limit_and_a_latency_is_not(results: Path) -> None:
    limited = {**GOAL, "ratio": 1.5, "goal": 1.5, "reached": True, "limit": 60.0, "mixed": 70.0, "share": 0.5}
    late = {**GOAL, "unit": "ms", "ratio": 1.5, "goal": 1.0, "reached": False, "limit": None}
    model = {**SERVING["models"]["llama-135m"], "limits": LIMITS, "goals": [{**limited, "most": 3.5}, late]}
    lines = page(results, serving={**SERVING, "models": {"llama-135m": model}}).splitlines()
    (header,) = [line for line in lines if line.endswith("| limit, tok/s | share | most |")]
    rows = [line for line in lines if line.startswith("| c1, fp32 | parley f32 |")]
    assert [row.split("| ", 7)[-1] for row in rows] == [
        "≥ 1.5 | reached | 60 (70) | 50% | 3.50 |",
        "≤ 1 | **not reached** |  |  |  |",
    ]
    assert {row.count("|") for row in rows} == {header.count("|")}
    assert "24.0 GB/s read, 200 GFLOP/s in fp32, 400 in bf16, 800 GOP/s in int8" in "\n".join(lines)


def test_a_share_of_the_roof_is_judged(results: Path) -> None:
    text = page(results, roofline=ROOFLINE)
    assert "| int8 | 1 | 130 | 8.0 | 125 | 27.4 | 150 | reading | 83% | ≥ 85% | **not reached** |" in text


def test_points_that_were_not_measured_stay_empty(results: Path) -> None:
    text = page(results, scaling=SCALING)
    assert "| 8192 | 100 (10.0) |  |" in text
    assert f"(scaling-{about()['machine']}.svg)" in text


def test_what_rounding_costs_is_told_beside_the_exact_model(results: Path) -> None:
    row = {"perplexity": 1.2345678, "right": 0.5, "agreement": 0.987654}
    variants = {"exact": {**row, "agreement": 1.0}, "int8": row}
    text = page(results, quality={"texts": 200, "variants": variants})
    assert "on 200 held-out questions" in text
    assert "| exact | 1.2346 | 50.0% | 100.00% |" in text
    assert "| int8 | 1.2346 | 50.0% | 98.77% |" in text


@pytest.mark.parametrize(("faults", "told"), [([], "grown): none."), (["a: no end"], "grown): a: no end.")])
def test_a_soak_tells_what_it_broke(results: Path, faults: list[str], told: str) -> None:
    held = {"engine": {"warm_mib": 285.7, "last_mib": 286.2, "warm_files": 9.0, "last_files": 9.0}}
    text = page(results, soak={**SOAK, "faults": faults, "held": held})
    assert "10,000 sequences" in text
    assert "8,952 finished, 5 refused" in text
    assert told in text
    assert "| engine | 286 | 286 | 9 | 9 |" in text


@pytest.mark.parametrize(("broken", "told"), [([], "grew: none."), (["chat: failed"], "grew: chat: failed.")])
def test_hours_with_faults_tell_what_was_cut_and_what_nothing_explains(
    results: Path, broken: list[str], told: str
) -> None:
    held = {"worker": {"warm_mib": 69.9, "last_mib": 71.9, "warm_files": 23.0, "last_files": 22.0}}
    faults = [{"fault": "engine stopped", "at": at, "seconds": 1.0} for at in (5, 9)]
    ended = {"finished": 1200, "LOST": 3}
    kinds = {"invalid": 70, "chat": 1133}
    served: dict[str, Any] = {
        "hours": 1.0,
        "sent": 1203,
        "ended": ended,
        "by_kind": kinds,
        "faults": faults,
        "held": held,
    }
    text = page(results, served={**served, "unexplained": broken, "grown": [], "exit_code": 0})
    assert "Of 1,203 requests, finished: 1,200; cut without an end: 3. Ends" in text
    assert told in text
    assert "Faults: 2 times engine stopped." in text
    assert "| worker | 70 | 72 | 23 | 22 |" in text


def test_what_was_cut_is_told_with_the_faults_of_its_time(results: Path) -> None:
    served = {"hours": 1.0, "sent": 3, "ended": {"LOST": 3}, "by_kind": {}, "faults": [], "held": {}}
    lost = {"lost_by_fault": {"API worker stopped": 1, "API worker killed -9": 2}}
    text = page(results, served={**served, **lost, "unexplained": [], "grown": [], "exit_code": 0})
    assert "cut without an end: 3 (2 during: API worker killed -9, 1 during: API worker stopped)." in text


def test_sections_without_results_are_left_out(results: Path) -> None:
    lines = page(results).splitlines()
    assert [line for line in lines if line.startswith("##")] == ["## On a GPU"]  # its goals


def test_layers_that_keep_a_state_are_told_beside_transformers(results: Path) -> None:
    row = {
        "like": "a hybrid",
        "level": "native: its layers keep a state",
        "same_texts": 1.0,
        "rates": [{"batch": 1, "parley": 9.0, "transformers": 3.6}],
        "turn_ms": {"whole": 900.4, "kept": 30.2},
    }
    sizes = {"prompt": 128, "tokens": 32, "talk": 1024, "turn": 32, "words": 32_000, "reps": 3}
    text = page(results, states={**sizes, "rows": [row]})
    assert "a conversation of 1,056" in text
    assert "| a hybrid | native | 3.6, 9.0, **2.5** | 900 | 30 | 100% |" in text


def test_models_of_other_shapes_are_told_beside_transformers_and_layer_by_layer(results: Path) -> None:
    rates = {"transformers": 5.4, "layer by layer": 19.7, "parley": 28.1, "4 bits": 37.2}
    row = {"like": "a mixture", "level": "fused", "same_texts": 0.75, "rates": [{"batch": 1, **rates}]}
    text = page(results, shapes={"prompt": 128, "tokens": 32, "words": 32_000, "reps": 3, "rows": [row]})
    assert "| a mixture | 1 | 5.4 | 19.7 | 28.1 | 37.2 | **5.2** | 75% |" in text
