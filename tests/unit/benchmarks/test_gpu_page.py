from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu.page import section

DECODE = {"what": "decode", "batch": 1, "context": 520, "tokens_per_second": 170.0, "share": 0.85}
KERNELS = {"kernels_per_step": 300.0, "kernels_per_layer": 9.4}
RESULTS: dict[str, Any] = {
    "device": "cuda",
    "gpu": "A GPU",
    "torch": "2.11",
    "triton": "3.6",
    "transformers": "5.17",
    "day": "2026-12-01",
    "missing": {"linears": "no time"},
    "notes": {"baseline": "it rained"},
    "parts": {
        "ceilings": [{"copy_gb_per_second": 3000.4, "read_gb_per_second": 2900.0, "tflops": 798.0}],
        "llama-3.1-8b": [
            {"what": "level", "level": "fused"},
            DECODE,
            {"what": "prefill", "prompt": 1024, "tokens_per_second": 39_000.0, "share": 0.7},
            {"what": "mixed", "requests": 256, "seconds": 9.0, "tokens_per_second": 9_000.0},
            {"what": "idle", "batch": 64, "idle": 0.03, "idle_watched": 0.04, **KERNELS},
            {"what": "idle", "batch": 1, "idle": -0.021, "idle_watched": 0.011, **KERNELS},
        ],
        "baseline": [{"what": "the engine", "requests": 128, "tokens_each": 256, "times": 7.25}],
        "switches": [
            {**DECODE, "model": "llama-3.1-8b", "without": "everything on"},
            {**DECODE, "model": "llama-3.1-8b", "without": "no CUDA graphs", "tokens_per_second": 90.0},
        ],
    },
}


def page(folder: Path) -> str:
    return "\n".join(section(folder))


def test_the_goals_are_shown_while_there_are_no_results(tmp_path: Path) -> None:
    (tmp_path / "gpu-cpu.json").write_text(json.dumps({"device": "cpu"}))  # a test of the benchmark itself
    found = page(tmp_path)
    assert "Nothing of it was measured on a GPU yet" in found
    assert "| llama-3.1-8b | decode, batch 1 | 165 |" in found


def test_results_are_shown_beside_their_goals(tmp_path: Path) -> None:
    (tmp_path / "gpu-a.json").write_text(json.dumps(RESULTS))
    found = page(tmp_path)
    assert "Nothing of it" not in found
    assert "Memory copies at 3,000 GB/s and is read at 2,900, matrices multiply at 798 TFLOP/s." in found
    assert "| llama-3.1-8b | decode, batch 1 | 520 | 170 | 85% | ≥ 165 | reached |" in found
    assert "| llama-3.1-8b | prefill | 1024 | 39,000 | 70% | ≥ 40,000 | **not reached** |" in found
    assert "| llama-3.1-8b | mixed |  | 9,000 |  | ≥ 8,500 | reached |" in found
    assert "| llama-3.1-8b | 64 | 3.0% | 4.0% | **not reached** | 300 | 9.4 |" in found
    assert "| llama-3.1-8b | 1 | 0.0% | 1.1% | reached | 300 | 9.4 |" in found
    assert "7.2 times as fast" in found
    assert "| no CUDA graphs | 90 |" in found
    assert "baseline: it rained." in found.splitlines()
    assert "Missing: linears: no time" in found
