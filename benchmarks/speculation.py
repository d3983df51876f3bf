"""Measure what guessing ahead (--speculate) makes of the rate of texts, by how many guesses are right.

    python -m benchmarks.speculation [--models FOLDER/models] [--dtype auto] [--quantize int8] [--quick]

In process, on SmolLM2-135M's shape with random weights, whose texts say nothing of how often a guess is
right: here the guesses are the texts themselves, known from a run before, with wrong tokens among them. Runs
with and without guesses alternate. Writes benchmarks/results/speculation-MACHINE.json and docs/benchmarks.md.
"""

from __future__ import annotations

from inference.environment import prepare_environment

prepare_environment()

import argparse  # noqa: E402
import json  # noqa: E402
import queue  # noqa: E402
import random  # noqa: E402
import statistics  # noqa: E402
import tempfile  # noqa: E402
import time  # noqa: E402
from dataclasses import dataclass, field  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402
from unittest.mock import patch  # noqa: E402

import numpy as np  # noqa: E402

from benchmarks import report  # noqa: E402
from benchmarks.inprocess import greedy_request  # noqa: E402
from benchmarks.machine import RESULTS, about, machine  # noqa: E402
from benchmarks.serving.models import SHAPES, make_model  # noqa: E402
from inference.config import EngineConfig, ModelConfig  # noqa: E402
from inference.engine import assembly  # noqa: E402
from inference.engine.drafts import Drafts  # noqa: E402
from inference.engine.engine import TorchCore  # noqa: E402
from inference.engine.speculation import Speculation  # noqa: E402
from inference.sequences.state import Integers, Pieces, Sequence  # noqa: E402
from inference.types import CoreFailure, Frame  # noqa: E402

NAME = "llama-135m"
CONTEXT, TOKENS, SECONDS = 128, 96, 600


@dataclass(frozen=True, slots=True)
class Case:
    """What is measured: texts at once, most guesses for each in a step, and how many of 100 are right."""

    batch: int
    guesses: int = 0
    right: int = 0


@dataclass(slots=True)
class Known:
    """The texts, by their prompts, and what is to be guessed of them now."""

    texts: dict[tuple[int, ...], list[int]] = field(default_factory=dict)
    case: Case = field(default_factory=lambda: Case(1))
    dice: random.Random = field(default_factory=lambda: random.Random(1))


KNOWN = Known()


class Oracle(Speculation[Any]):
    """Guesses what it knows, wrongly now and then."""

    def draft(self, pieces: Pieces) -> Drafts | None:
        """Return a step with guesses, if the case has any."""
        self._most = KNOWN.case.guesses
        return super().draft(pieces) if KNOWN.case.guesses else None

    def _guess(self, sequence: Sequence, most: int) -> Integers:
        text = KNOWN.texts[sequence.request.prompt_ids][sequence.generated :][:most]
        for at in range(len(text)):
            if KNOWN.dice.randrange(100) >= KNOWN.case.right:
                text[at] = (text[at] + 1) % 1000
        return np.array(text, dtype=np.int64)


class Bench:
    """A loaded engine that guesses by an oracle."""

    def __init__(self, config: EngineConfig) -> None:
        self._core = TorchCore(config)
        with patch.object(assembly, "Speculation", Oracle):
            info = self._core.load(print)
        self.weights, self.level = info.dtype, info.level
        self._frames: queue.Queue[tuple[float, Frame]] = queue.Queue()
        self._core.start(lambda frame: self._frames.put((time.perf_counter(), frame)))
        self._made = 0

    def rate(self, case: Case) -> float:
        """Return the tokens per second of the texts that go on, once all prompts are computed."""
        KNOWN.case = case
        self._made += 1
        names = [f"{self._made}.{at}" for at in range(case.batch)]
        prompts = {name: _prompt(at) for at, name in enumerate(names)}
        said: dict[str, list[int]] = {name: [] for name in names}
        for name, prompt in prompts.items():
            self._core.submit(greedy_request(name, prompt, TOKENS))
        began, first = 0.0, 0
        while any(len(text) < TOKENS for text in said.values()):
            at, frame = self._frames.get(timeout=SECONDS)
            for output in frame.outputs:
                if isinstance(output, CoreFailure):
                    raise RuntimeError(output.message)
                said[output.id].append(output.token_id)
            if not began and all(said.values()):
                began, first = at, sum(map(len, said.values()))
        for name, prompt in prompts.items():
            assert KNOWN.texts.setdefault(prompt, said[name]) == said[name], "guesses change no text"
        return (TOKENS * case.batch - first) / (at - began)

    def close(self) -> None:
        """End the engine."""
        self._core.stop()


def main() -> None:
    """Measure all cases, and write them down."""
    arguments = _arguments()
    shares, rounds = ((100,), 1) if arguments.quick else ((0, 50, 80, 100), 4)
    cases = [Case(batch, guesses, right) for batch in (1, 2, 4) for guesses in (2, 5) for right in shares]
    with tempfile.TemporaryDirectory() as temporary:
        models = arguments.models or Path(temporary)
        if not (models / NAME).exists():
            make_model(models, NAME)
        model = ModelConfig(model_id=str(models / NAME), dtype=arguments.dtype, quantize=arguments.quantize)
        bench = Bench(
            EngineConfig(model=model, speculate=1, max_total_tokens=CONTEXT + TOKENS, max_batch_size=4)
        )
        try:
            rows = [_measure(bench, case, rounds) for case in cases]
        finally:
            bench.close()
    if not arguments.quick:
        found = {
            **about(),
            "like": SHAPES[NAME].like,
            "weights": bench.weights,
            "level": bench.level,
            "rows": rows,
        }
        (RESULTS / f"speculation-{machine()}.json").write_text(json.dumps(found, indent=1) + "\n")
        report.write()


def _measure(bench: Bench, case: Case, rounds: int) -> dict[str, Any]:
    plain, guessing = [], []
    bench.rate(Case(case.batch))  # the texts become known, and their prompts
    for _ in range(rounds):
        plain.append(bench.rate(Case(case.batch)))
        guessing.append(bench.rate(case))
    before, after = statistics.median(plain), statistics.median(guessing)
    ratio = statistics.median(b / a for a, b in zip(plain, guessing, strict=True))
    print(f"{case}: {before:.1f} -> {after:.1f} tokens/s, x{ratio:.2f}", flush=True)
    return {
        "batch": case.batch,
        "guesses": case.guesses,
        "right": case.right,
        "plain_tokens_per_second": round(before, 1),
        "tokens_per_second": round(after, 1),
        "ratio": round(ratio, 3),
    }


def _prompt(at: int) -> tuple[int, ...]:
    dice = random.Random(at)
    return tuple(dice.randrange(3, 1000) for _ in range(CONTEXT))


def _arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.speculation", description=__doc__, formatter_class=formatter
    )
    parser.add_argument("--models", type=Path, help="folder of models that were made before")
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--quantize")
    parser.add_argument("--quick", action="store_true", help="a few cases; nothing is written")
    return parser.parse_args()


if __name__ == "__main__":
    main()
