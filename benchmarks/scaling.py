"""Measure the tokens per second and the time of a step for each batch size and context length, in process.

    python -m benchmarks.scaling [--models FOLDER/models] [--dtype auto] [--quantize int8] [--quick]

On SmolLM2-135M's shape with random weights. Writes benchmarks/results/scaling-MACHINE.json,
docs/scaling-MACHINE.svg and docs/benchmarks.md. Takes some minutes, most of it for the prompts.
"""

from __future__ import annotations

from inference.environment import prepare_environment

prepare_environment()

import argparse  # noqa: E402
import json  # noqa: E402
import tempfile  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from benchmarks import report  # noqa: E402
from benchmarks.inprocess import Engine, Steps, engine, with_context  # noqa: E402
from benchmarks.machine import RESULTS, about, machine  # noqa: E402
from benchmarks.plot import Chart, Points, draw  # noqa: E402
from benchmarks.serving.models import SHAPES, make_model  # noqa: E402
from inference.config import EngineConfig, ModelConfig  # noqa: E402

NAME = "llama-135m"
BATCHES = (1, 2, 4, 8, 16, 32, 64)
CONTEXTS = (128, 512, 2048, 8192)
STEPS = 24  # of each batch and context
STEP_TOKENS = 1024  # few steps then compute all prompts, and the first sequences have hardly grown by then
ROOM = STEPS * len(BATCHES) + 256  # tokens that a sequence grows by


@dataclass(frozen=True, slots=True)
class Grid:
    """What is measured."""

    batches: tuple[int, ...] = BATCHES
    contexts: tuple[int, ...] = CONTEXTS
    steps: int = STEPS
    tokens: int = 65536  # in the KV cache at once: 3 GB

    def batches_of(self, context: int) -> list[int]:
        """Return the batch sizes whose keys and values fit."""
        return [batch for batch in self.batches if batch * context <= self.tokens]


def main() -> None:
    """Measure the grid, write it down and draw it."""
    arguments = _arguments()
    grid = Grid(batches=(1, 4), contexts=(128, 512), steps=4) if arguments.quick else Grid()
    with tempfile.TemporaryDirectory() as temporary:
        models = arguments.models or Path(temporary)
        if not (models / NAME).exists():
            make_model(models, NAME)
        longer = Path(temporary, "longer")
        longer.mkdir()
        directory = with_context(models / NAME, longer, max(grid.contexts) + ROOM)
        with engine(_config(directory, grid, arguments)) as running:
            measured = measure(running, grid)
            level, weights = running.info.level, running.info.dtype
    written = {**about(), "like": SHAPES[NAME].like, "weights": weights, "level": level, **measured}
    if arguments.quick:
        return
    (RESULTS / f"scaling-{machine()}.json").write_text(json.dumps(written, indent=1) + "\n")
    (report.DOCS / f"scaling-{machine()}.svg").write_text(plot(measured["points"]))
    report.write()


def measure(running: Engine, grid: Grid) -> dict[str, Any]:
    """Return the points, and how fast prompts were computed at best."""
    points, rates = [], [0.0]
    for context in grid.contexts:
        for steps in running.decode(grid.batches_of(context), context, grid.steps):
            points.append(_point(context, steps))
            rates.append(steps.prefill_tokens_per_second or 0.0)
            print(
                f"context {context:5d}, batch {steps.batch:3d}: {1e3 * steps.seconds:8.1f} ms, "
                f"{steps.batch / steps.seconds:8.1f} tokens/s",
                flush=True,
            )
    points.sort(key=lambda point: (point["context"], point["batch"]))
    return {"prefill_tokens_per_second": round(max(rates), 1), "points": points}


def plot(points: list[dict[str, Any]]) -> str:
    """Return the picture of the points: tokens per second, and time of a step, over the batch size."""
    rates: dict[str, Points] = {}
    times: dict[str, Points] = {}
    for point in points:
        name = f"{point['context']} tokens"
        rates.setdefault(name, []).append((point["batch"], point["tokens_per_second"]))
        times.setdefault(name, []).append((point["batch"], point["step_ms"]))
    across = "sequences in a step"
    return draw([Chart("tokens per second", across, rates), Chart("time of a step, ms", across, times)])


def _point(context: int, steps: Steps) -> dict[str, Any]:
    return {
        "context": context,
        "batch": steps.batch,
        "tokens_held": round(steps.context),
        "step_ms": round(1e3 * steps.seconds, 2),
        "least_step_ms": round(1e3 * steps.least, 2),
        "tokens_per_second": round(steps.batch / steps.seconds, 1),
    }


def _config(directory: Path, grid: Grid, arguments: argparse.Namespace) -> EngineConfig:
    return EngineConfig(
        model=ModelConfig(model_id=str(directory), dtype=arguments.dtype, quantize=arguments.quantize),
        max_batch_size=max(grid.batches),
        max_batch_prefill_tokens=STEP_TOKENS,
        prefill_chunk_tokens=STEP_TOKENS,  # or the first to go on would have ended before the last one begins
        max_batch_total_tokens=grid.tokens + ROOM * max(grid.batches),
        max_total_tokens=max(grid.contexts) + ROOM,
    )


def _arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.scaling", description=__doc__, formatter_class=formatter
    )
    parser.add_argument("--models", type=Path, help="folder of models that were made before")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantize")
    parser.add_argument("--quick", action="store_true", help="a few points; nothing is written")
    return parser.parse_args()


if __name__ == "__main__":
    main()
