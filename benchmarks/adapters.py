"""Measure what LoRA adapters cost: the rate of texts and prompts beside that of a server without any.

    python -m benchmarks.adapters [--models FOLDER/models] [--dtype auto] [--quantize int8] [--quick]

In process, on SmolLM2-135M's shape with random weights, with and without adapters in turn. Writes
benchmarks/results/adapters-MACHINE.json and docs/benchmarks.md.
"""

from __future__ import annotations

from inference.environment import prepare_environment

prepare_environment()

import argparse  # noqa: E402
import json  # noqa: E402
import statistics  # noqa: E402
import tempfile  # noqa: E402
from dataclasses import replace  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

from benchmarks import report  # noqa: E402
from benchmarks.inprocess import Engine, engine  # noqa: E402
from benchmarks.machine import RESULTS, about, machine  # noqa: E402
from benchmarks.random_adapters import save_adapters  # noqa: E402
from benchmarks.serving.models import SHAPES, make_model  # noqa: E402
from inference.config import EngineConfig, ModelConfig  # noqa: E402

NAME = "llama-135m"
COUNT, RANK = 4, 16
CONTEXT, STEPS, ROUNDS = 512, 40, 5
BATCHES = [1, 4, 8]
CASES: dict[str, tuple[int, ...]] = {
    "no text has one": (-1,),
    "all have the same": (0,),
    "every second one has it": (0, -1),
    "each has another": tuple(range(COUNT)),
}


def main() -> None:
    """Measure all cases, and write them down."""
    arguments = _arguments()
    with tempfile.TemporaryDirectory() as temporary:
        models = arguments.models or Path(temporary)
        if not (models / NAME).exists():
            make_model(models, NAME)
        named = save_adapters(models / NAME, Path(temporary) / "adapters", COUNT, RANK)
        model = ModelConfig(model_id=str(models / NAME), dtype=arguments.dtype, quantize=arguments.quantize)
        config = EngineConfig(model=model, max_batch_size=max(BATCHES), prefix_caching=False)
        with (
            engine(config) as plain,
            engine(replace(config, model=replace(model, adapters=named))) as adapting,
        ):
            rows = [
                row
                for case in CASES
                for row in _measure(case, plain, adapting, 1 if arguments.quick else ROUNDS)
            ]
            weights = plain.info.dtype
    if not arguments.quick:
        shape = {
            "like": SHAPES[NAME].like,
            "weights": weights,
            "context": CONTEXT,
            "count": COUNT,
            "rank": RANK,
        }
        found = {**about(), **shape, "rows": rows}
        (RESULTS / f"adapters-{machine()}.json").write_text(json.dumps(found, indent=1) + "\n")
        report.write()


def _measure(case: str, plain: Engine, adapting: Engine, rounds: int) -> list[dict[str, Any]]:
    """Return the rates of a case in units of those without adapters; the batch 0 is that of prompts."""
    pairs: dict[int, list[tuple[float, float]]] = {}
    for _ in range(rounds):
        for one, other in zip(_rates(plain, (-1,)), _rates(adapting, CASES[case]), strict=True):
            pairs.setdefault(one[0], []).append((one[1], other[1]))
    rows = []
    for batch, found in pairs.items():
        ratio = statistics.median(other / one for one, other in found)
        rate = statistics.median(other for _, other in found)
        print(f"{case}, batch {batch}: {rate:.1f} tokens/s, x{ratio:.3f}", flush=True)
        rows.append(
            {"case": case, "batch": batch, "tokens_per_second": round(rate, 1), "ratio": round(ratio, 3)}
        )
    return rows


def _rates(engine_: Engine, adapters: tuple[int, ...]) -> list[tuple[int, float]]:
    """Return the tokens per second by batch; of prompts by the batch 0."""
    steps = list(engine_.decode(BATCHES, CONTEXT, STEPS, adapters))
    prompts = steps[0].prefill_tokens_per_second
    assert prompts is not None, "the largest batch comes first, with its prompts"
    return [*((each.batch, each.batch / each.seconds) for each in steps), (0, prompts)]


def _arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.adapters", description=__doc__, formatter_class=formatter
    )
    parser.add_argument("--models", type=Path, help="folder of models that were made before")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantize")
    parser.add_argument("--quick", action="store_true", help="one round; nothing is written")
    return parser.parse_args()


if __name__ == "__main__":
    main()
