from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu.ceilings import Ceilings, floor_seconds, prefill_ceiling
from benchmarks.gpu.clock import Clock, OutOfTime
from benchmarks.gpu.models import SHAPES, SMALL, write_description
from benchmarks.gpu.record import Record
from benchmarks.gpu.timeline import of_spans
from inference.files.checkpoint import read_weights

ROOT = Path(__file__).parents[3]
ABSENT = ("msgspec", "llguidance", "connexion", "jsonschema_rs", "starlette", "uvicorn")

# Runs the benchmark as on a machine that has torch and transformers, but not these packages
ALONE = f"""
import runpy, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {ABSENT!r}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
runpy.run_module("benchmarks.gpu", run_name="__main__", alter_sys=True)
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", ALONE, "--device", "cpu", *arguments]
    environment = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE", "PATH": ""}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    file = tmp_path_factory.mktemp("gpu") / "results.json"
    done = run("--quick", "--out", str(file))
    assert done.returncode == 0, done.stdout + done.stderr
    found: dict[str, Any] = json.loads(file.read_text())
    return found


@pytest.mark.slow
def test_all_of_it_runs_on_a_cpu_with_no_more_than_torch_and_transformers(results: dict[str, Any]) -> None:
    assert results["missing"] == {}
    parts = results["parts"]
    assert set(parts) == {
        "correct", "ceilings", "qwen2.5-0.5b", "baseline", "switches", "attention", "linears", "4 bits",
        "experts", "latent",
    }  # fmt: skip
    assert [row["what"] for row in parts["qwen2.5-0.5b"]] == [
        "level", "decode", "decode", "prefill", "mixed", "shared prefix"
    ]  # fmt: skip
    assert {row["without"] for row in parts["switches"]} >= {"everything on", "no CUDA graphs"}
    assert {row["what"] for row in parts["4 bits"]} == {"linear, awq", "linear, nf4"}
    assert all(isinstance(each, float) for row in parts["4 bits"] for each in row["us"].values())
    for row in parts["experts"]:
        assert row["us"].keys() == {"transformers", "16 bits", "invariant", "awq", "nf4"}
        assert all(isinstance(each, float) for each in row["us"].values())
    beside = {row["without"] for row in parts["switches"] if "top-k 50" in row["what"]}
    assert beside == {"everything on", "filters by the host"}


@pytest.mark.slow
def test_the_toy_is_served_at_the_level_that_is_measured(results: dict[str, Any]) -> None:
    assert results["parts"]["qwen2.5-0.5b"][0]["level"] == "fused"
    cached = results["parts"]["qwen2.5-0.5b"][-1]["cached"]
    assert cached > 0.5  # the shared prefix was found


def test_a_part_that_has_no_time_left_is_said_to_be_missing(tmp_path: Path) -> None:
    with pytest.raises(OutOfTime, match="linears takes about 10 s, and 0 s are left"):
        Clock(0).need(10, "linears")
    record = Record(tmp_path / "results.json", {"gpu": "none"})
    record.add("ceilings", {"what": "ceilings", "tflops": 1.5})
    record.miss("linears", "no time")
    record.took("ceilings", 1.26)
    assert json.loads((tmp_path / "results.json").read_text()) == {
        "gpu": "none",
        "parts": {"ceilings": [{"what": "ceilings", "tflops": 1.5}]},
        "missing": {"linears": "no time"},
        "seconds": {"ceilings": 1.3},
        "notes": {},
    }


def test_parts_of_an_earlier_run_stay_until_they_are_measured_again(tmp_path: Path) -> None:
    file = tmp_path / "results.json"
    first = Record(file, {"gpu": "a"})
    first.add("ceilings", {"tflops": 1.5})
    first.add("linears", {"us": 2})
    first.results["notes"] = {"ceilings": "cold", "linears": "warm"}
    first.took("linears", 2.0)
    again = Record(file, {"gpu": "a"})
    again.begin("linears")
    again.add("linears", {"us": 3})
    assert json.loads(file.read_text())["parts"] == {"ceilings": [{"tflops": 1.5}], "linears": [{"us": 3}]}
    assert json.loads(file.read_text())["notes"] == {"ceilings": "cold"}
    assert Record(file, {"gpu": "b"}).results["parts"] == {}


def test_weights_are_those_of_the_real_models() -> None:
    billions = {name: round(shape.multiplied / 1e9, 2) for name, shape in SHAPES.items()}
    assert billions == {
        "llama-3.1-8b": 7.5, "llama-3.2-1b": 1.24, "qwen2.5-0.5b": 0.49, "qwen2.5-1.5b": 1.54,
        "qwen3.5-0.8b": 0.75,
    }  # fmt: skip
    assert 2 * SHAPES["llama-3.1-8b"].kv_numbers == 131_072  # bytes of a token


def test_a_models_files_take_no_room(tmp_path: Path) -> None:
    write_description(tmp_path, SMALL)
    assert read_weights(tmp_path).floats > SMALL.multiplied
    assert (tmp_path / "model.safetensors").stat().st_blocks * 512 < 100_000


def test_the_floor_of_a_step_is_what_must_be_read_or_multiplied() -> None:
    shape, ceilings = SHAPES["llama-3.1-8b"], Ceilings(3.0e12, 2.0e12, 800e12)
    alone, bound = floor_seconds(shape, ceilings, 1, 512, 2)
    assert bound == "weights"
    assert alone == pytest.approx((2 * shape.multiplied + 131_072 * 512) / 3.0e12)
    together, bound = floor_seconds(shape, ceilings, 256, 768, 2)
    assert bound == "cache"
    assert together == pytest.approx(0.0136, rel=0.01)
    assert floor_seconds(shape, ceilings, 2048, 1, 2)[1] == "products"
    assert prefill_ceiling(shape, ceilings) == pytest.approx(57_000, rel=0.02)


def test_a_gpu_idles_while_no_kernel_runs() -> None:
    spans = [(10.0, 20.0, "a"), (15.0, 25.0, "b"), (30.0, 50.0, "a")]
    found = of_spans(spans)
    assert found is not None
    assert found.idle == pytest.approx(5 / 40)
    assert found.busy == pytest.approx(35e-6)
    assert found.kernels == 3
    assert found.slowest == pytest.approx({"a": 3e-05, "b": 1e-05})
    assert of_spans([]) is None
