from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")

from inference.kernels.gpu.tiles import SHARED_BYTES
from tests.unit.inference.kernels_gpu import record

MOST_SPILLED = 16  # bytes, which no program feels: Triton 3.6 leaves 8 of one in float32, 3.9 none
SPILLED = {  # at most, where it is more
    **{"_prepare": 384, "_recur_in_chunks": 96},  # of heads of 256; of 128 it is 48 and none
    "_attend_latents": 32,  # of what a loop over 64 keys at once keeps for its end
}
STATES = {"_find_places", "_convolve", "_recur", "_prepare", "_recur_in_chunks", "_scan_channels"}
EXPERTS = {"_route", "_combine_experts", "_expert_pair", "_expert_tile", "_pair_of_blocks", "_tile_of_blocks"}
KERNELS = {
    *("_attend", "_merge", "_attend_latents", "_merge_latents"),
    *("_rotate_and_write", "_write", "_gather", "_scatter", "_settle"),
    *("_norm", "_gate", "_search", "_combine", "_row", "_add_parts", "_gated_row"),
    *("_scan", "_bound", "_collect", "_pick", "_walk"),
    *STATES,
    *("_norm_and_gate", "_move"),
    *EXPERTS,
}
ROOT = Path(__file__).parents[4]
LINE = re.compile(
    r"(\w+) +(\d+) bytes shared, +(\d+) registers, +(\d+) bytes spilled, (waits|follows) ?(\w*)$"
)


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where the compiler keeps what it has made, for either program."""
    return tmp_path_factory.mktemp("cache")


def said(module: str, cache: Path, *arguments: str) -> list[str]:
    """Return the lines of a program that compiles, and so needs a process without the interpreter."""
    environment = os.environ | {"TRITON_CACHE_DIR": str(cache), "PYTHONPATH": str(ROOT)}
    environment.pop("TRITON_INTERPRET", None)
    line = [sys.executable, "-m", f"tests.unit.inference.kernels_gpu.{module}", *arguments]
    done = subprocess.run(line, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=600)
    assert 0 == done.returncode, done.stderr[-2000:]
    return done.stdout.splitlines()


@pytest.mark.slow
def test_no_step_waits_for_the_compiler_once_a_model_was_rehearsed(cache: Path) -> None:
    """Widths of tables, sizes of batches and lengths of prompts must be nothing to compile for."""
    families = ["llama", "gemma2", "gpt2", "qwen3_5_text", "granitemoehybrid", "mixtral", "youtu"]
    lines = said("hopper_steps", cache, *families)
    rehearsed = [re.fullmatch(r"(\w+): (\d+) rehearsed: (.*)", each) for each in lines[::2]]
    assert [each and each[1] for each in rehearsed] == families, lines
    assert lines[1::2] == [f"{family}: 0 late: " for family in families]
    for each in filter(None, rehearsed):
        assert int(each[2]) >= 4
        assert set(each[3].split()) <= KERNELS, "the other test has all of them compiled to the end"


@pytest.mark.slow
def test_the_compiler_takes_every_kernel_for_a_hopper(cache: Path) -> None:
    """The interpreter doesn't know what a GPU can't do; nothing may spill registers to speak of, either.

    What was compiled of these very sources isn't compiled again, which takes minutes.
    """
    *lines, last = record.lines() or said("hopper_cases", cache)
    together = re.fullmatch(r"(\d+) compiled together, 0 later: ", last)
    assert together, last
    found = [LINE.search(each) for each in lines]
    assert None not in found
    compiled = [each.groups() for each in found if each is not None]
    for kernel, shared, _, spilled, *_ in compiled:
        assert int(shared) <= SHARED_BYTES, kernel
        assert int(spilled) <= SPILLED.get(kernel, MOST_SPILLED), kernel
    kernels = {kernel for kernel, *_ in compiled}
    assert int(together[1]) >= len(kernels)
    assert KERNELS <= kernels
    early = {kernel for kernel, *_, waits, _ in compiled if waits == "waits"}
    assert {"_attend", "_merge", "_rotate_and_write", "_gather", "_scatter", "_norm", "_gate"} <= early
    assert STATES | EXPERTS <= early
    assert {"_search", "_combine", "_row", "_rows", "_add_parts", "_gated_row", "_gated_rows"} <= early
    by_tensor_cores = {kernel for kernel, *_, product in compiled if product in ("HGMMA", "HMMA")}
    assert {"_attend", "_attend_latents", "_rows", "_gated_rows", "_tile"} <= by_tensor_cores
    assert {"_prepare", "_recur_in_chunks", "_expert_tile", "_tile_of_blocks"} <= by_tensor_cores


def test_the_record_is_of_these_kernels() -> None:
    write = "python -m tests.unit.inference.kernels_gpu.hopper_cases --write"
    assert record.of_what()[0] == record.of_sources(), f"kernels were changed: run {write}"


@pytest.mark.slow
def test_what_is_compiled_again_comes_to_what_is_on_record(cache: Path) -> None:
    recorded = record.lines()
    if recorded is None:
        pytest.skip("the record is of another Triton, and all was compiled")
    names = ("prompt 64", "decode, everything", "rotate", "slots")
    found = said("hopper_cases", cache, *names)[:-1]
    assert all(any(line.startswith(f"{name} ") for line in found) for name in names)
    assert set(found) <= set(recorded)
