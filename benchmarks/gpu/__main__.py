"""Check and measure the engine on a GPU: one command, on a machine with torch, Triton and transformers.

    python -m benchmarks.gpu [--quick] [--only PART ...] [--out FILE] [--seconds N] [--device cuda]
    python -m benchmarks.gpu --suite

Models have random weights in real shapes, drawn on the device. What is right is checked first, then come the
device's ceilings, each model, single operations, transformers in the same run, and each optimisation off
in turn. All of it fits in eight minutes, --quick in two: what doesn't is left out, and said. Results go
to benchmarks/results/gpu-NAME.json after each row; parts that aren't asked for stay there as they are.
`--device cpu` runs all of it with a tiny model, as a test of itself; `--suite` runs the tests of kernels
and of the GPU's path on this machine.
"""

from __future__ import annotations

from benchmarks.gpu import absent  # first: it stands in for what the others import

import argparse  # isort: skip
import importlib.util
import logging
import os
import signal
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import torch

from benchmarks.gpu import correct, experts, kernels, latent, page, serving
from benchmarks.gpu.baselines import beside, compare
from benchmarks.gpu.ceilings import Ceilings, measure_ceilings
from benchmarks.gpu.clock import Clock, OutOfTime
from benchmarks.gpu.models import LATENT, SHAPES, SMALL, SMALL_LATENT, HybridShape, Shape, free
from benchmarks.gpu.record import Record, about, results_file
from benchmarks.machine import cores

Row = dict[str, Any]

SECONDS, QUICK_SECONDS = 480.0, 120.0
# In the order that they are measured in
MODELS = ("qwen2.5-0.5b", "llama-3.1-8b", "llama-3.2-1b", "qwen3.5-0.8b", "qwen2.5-1.5b")
PARTS = (
    "correct",
    "ceilings",
    *MODELS[:4],
    "attention",
    "linears",
    "4 bits",
    "experts",
    "latent",
    "baseline",
    MODELS[4],
    "switches",
)
NEEDED = {  # seconds that a part must have left to be begun, when everything is measured
    "correct": 20, "ceilings": 10, "qwen2.5-0.5b": 25, "llama-3.1-8b": 60, "llama-3.2-1b": 25,
    "baseline": 40, "switches": 30, "attention": 10, "linears": 10, "4 bits": 10, "experts": 25,
    "latent": 60,
    "qwen2.5-1.5b": 30, "qwen3.5-0.8b": 40,
}  # fmt: skip
SUITE_SECONDS = 540.0  # then the tests are ended, so that what has failed is still said
SUITE = ("tests/unit/inference/kernels_gpu", "tests/unit/inference/gpu")
# Which measure what memory is free: alone, one by one
ENGINES = (
    "tests/engine/test_device_path.py",
    "tests/engine/test_states.py",
    "tests/engine/test_device_quantised.py",
    "tests/engine/test_device_experts.py",
    "tests/engine/test_device_latent.py",
)


class Suite:
    """The parts, and what they share."""

    def __init__(self, device: torch.device, *, quick: bool, seconds: float | None = None) -> None:
        self.clock = Clock(seconds or (QUICK_SECONDS if quick else SECONDS))
        self._cpu = device.type == "cpu"
        self._device = device
        self._dtype = torch.float32 if self._cpu else torch.bfloat16
        self._sizes = serving.TINY if self._cpu else serving.QUICK if quick else serving.FULL
        self._share = 0.4 if quick or self._cpu else 1.0  # of NEEDED
        self._ceilings: Ceilings | None = None

    def run(self, part: str) -> Iterator[Row]:
        """Yield a part's rows; raise OutOfTime."""
        self.clock.need(NEEDED[part] * self._share, part)
        device, dtype, sizes, clock = self._device, self._dtype, self._sizes, self.clock
        if part == "correct":
            yield from correct.check(device, dtype, clock)
        elif part == "ceilings":
            yield {"what": "ceilings", **_numbers(self.ceilings)}
        elif part == "baseline":
            yield from compare(self._shape("qwen2.5-0.5b"), device, dtype, sizes, clock)
        elif part == "switches":
            for name in MODELS[:1] if self._cpu or self._share < 1 else MODELS[:2]:
                shape = self._shape(name)
                for row in serving.switches(shape, device, dtype, sizes, self.ceilings, clock):
                    yield {"model": name, **row}
        elif part == "attention":
            contexts = [40] if self._cpu else [512, 2048, 8192]
            shape = self._shape("llama-3.1-8b")
            yield from kernels.attention(shape, device, dtype, contexts, self.ceilings, clock)
        elif part == "4 bits":
            rows = [1, 16] if self._cpu else [1, 8, 64, 256]
            shape = self._shape(MODELS[1])
            yield from kernels.linears_in_4_bits(shape, device, dtype, rows, self.ceilings, clock)
        elif part == "experts":
            rows = [1, 16] if self._cpu else [1, 8, 64, 512, 4096]
            mixtures = experts.TINY if self._cpu else experts.MIXTURES
            yield from experts.experts(mixtures, device, dtype, rows, self.ceilings, clock)
        elif part == "latent":
            heads, contexts = (latent.TINY, [40]) if self._cpu else (latent.HEADS, [512, 2048, 8192])
            yield from latent.operations(heads, device, dtype, contexts, self.ceilings, clock)
            mla = SMALL_LATENT if self._cpu else LATENT
            yield from latent.serve(mla, device, dtype, sizes, self.ceilings, clock)
        elif part == "linears":
            rows = [1, 16] if self._cpu else [1, 8, 16, 256, 2048]
            for name in MODELS[:2]:
                shape = self._shape(name)
                for row in kernels.linears(shape, device, dtype, rows, self.ceilings, clock):
                    yield {"model": name, **row}
                if not self._cpu:
                    for row in kernels.gates(shape, device, dtype, clock):
                        yield {"model": name, **row}
        else:
            shape = self._shape(part)
            yield from serving.serve(shape, device, dtype, sizes, self.ceilings, clock)
            if isinstance(shape, HybridShape):
                yield from beside(shape, device, dtype, sizes, clock)

    @property
    def ceilings(self) -> Ceilings:
        """Return the device's ceilings, measured when they are asked for first."""
        if self._ceilings is None:
            self._ceilings = measure_ceilings(self._device)
        return self._ceilings

    def _shape(self, name: str) -> Shape:
        return SMALL if self._cpu else SHAPES[name]


def main() -> None:
    """Run what was asked for; exit with 1 if anything was wrong."""
    arguments = _arguments()
    if arguments.suite:
        sys.exit(_run_tests())
    if arguments.debug:
        logging.basicConfig()
        logging.getLogger("inference").setLevel(logging.DEBUG)
    device = torch.device(arguments.device)
    record = Record(arguments.out or results_file(device), about(device))
    suite = Suite(device, quick=arguments.quick, seconds=arguments.seconds)
    every = PARTS if device.type == "cuda" else tuple(part for part in PARTS if part not in MODELS[1:])
    failed = [part for part in arguments.only or every if not _run(suite, part, record, device)]
    if device.type == "cuda":
        print("\n".join(page.of_gpu(record.results)))
    _leave(1 if failed else 0)


def _run(suite: Suite, part: str, record: Record, device: torch.device) -> bool:
    """Run a part; return whether nothing was wrong, which is also true if there was no time for it."""
    record.begin(part)
    began = time.monotonic()
    try:
        for row in suite.run(part):
            record.add(part, row)
    except OutOfTime as late:
        record.miss(part, str(late))
    except Exception as error:  # the other parts are worth as much without this one
        traceback.print_exc()
        record.miss(part, f"{type(error).__name__}: {error}")
        return False
    finally:
        free(device)
        record.took(part, time.monotonic() - began)
    return True


def _leave(status: int) -> NoReturn:
    """Exit, whatever still runs: transformers' thread, say, which without time left computes to its end."""
    threads = [each for each in threading.enumerate() if not each.daemon and each.is_alive()]
    if others := [each.name for each in threads if each is not threading.main_thread()]:
        print(f"left without waiting for: {', '.join(others)}")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    sys.exit(status)


def _numbers(ceilings: Ceilings) -> Row:
    return {
        "copy_gb_per_second": round(ceilings.copy_bytes / 1e9, 1),
        "read_gb_per_second": round(ceilings.read_bytes / 1e9, 1),
        "tflops": round(ceilings.flops / 1e12, 2),
    }


def _run_tests() -> int:
    """Run the tests that need no more than this machine has; return pytest's status."""
    plugin = ["-p", absent.__name__]
    plugin += ["-o", "minversion=8", "-W", "default"]  # other versions warn of other things
    several: list[str] = []
    if torch.cuda.is_available() and importlib.util.find_spec("xdist") is not None:
        processes = max(cores() * 3 // 4, 1)  # on a GPU most of the time goes into compiling kernels
        several = ["-n", str(processes), "--dist", "worksteal"]
    began = time.monotonic()
    failed = _pytest([*plugin, *several, *SUITE], SUITE_SECONDS)
    return _pytest([*plugin, *ENGINES], SUITE_SECONDS - (time.monotonic() - began)) or failed


def _pytest(options: list[str], seconds: float) -> int:
    """Run some tests, for so long at most; return pytest's status."""
    command = [sys.executable, "-m", "pytest", "-q", "--timeout", "300", *options]
    with subprocess.Popen(command, cwd=Path(__file__).parents[2]) as running:
        try:
            return running.wait(max(seconds, 1.0))
        except subprocess.TimeoutExpired:
            running.send_signal(signal.SIGINT)  # pytest tells of the failures so far
            return running.wait() or 1


def _arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.gpu", description=__doc__, formatter_class=formatter
    )
    parser.add_argument("--quick", action="store_true", help="two minutes")
    parser.add_argument("--only", nargs="+", choices=PARTS, metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--out", type=Path, help="file of the results")
    parser.add_argument("--seconds", type=float, help=f"that all may take, if not {SECONDS:.0f}")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--debug", action="store_true", help="say what the engine only tries, and why it fails"
    )
    parser.add_argument("--suite", action="store_true", help="run the tests instead")
    return parser.parse_args()


if __name__ == "__main__":
    main()
