"""Measure texts of a model with an encoder and a decoder, beside transformers' own `generate`.

    python -m benchmarks.encoders [--quick]

In process, on FLAN-T5-base's shape with random weights in bfloat16. transformers computes the same weights in
float32, as many texts as one batch. Parley's ways alternate with it: as it comes, and with `--fuse-layers
false`, by which texts go on one at a time. Writes benchmarks/results/encoders-MACHINE.json and
docs/benchmarks.md.
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
from collections.abc import Callable  # noqa: E402

import torch  # noqa: E402
from transformers import PreTrainedModel, T5Config, T5ForConditionalGeneration  # noqa: E402

from benchmarks import report  # noqa: E402
from benchmarks.inprocess import SECONDS, greedy_request  # noqa: E402
from benchmarks.machine import RESULTS, about, machine  # noqa: E402
from inference.config import EngineConfig, ModelConfig  # noqa: E402
from inference.engine import TorchCore  # noqa: E402
from inference.types import CoreFailure, Frame  # noqa: E402

LIKE = "FLAN-T5-base"
PROMPT, TOKENS, BATCHES, ROUNDS = 128, 64, (1, 8), 3
SHAPE = {
    "vocab_size": 32128,
    "d_model": 768,
    "d_kv": 64,
    "d_ff": 2048,
    "num_layers": 12,
    "num_heads": 12,
    "feed_forward_proj": "gated-gelu",
    "tie_word_embeddings": False,
    "decoder_start_token_id": 0,
    "n_positions": 512,
}

Way = Callable[[int], float]  # seconds for so many texts at once


def main() -> None:
    """Measure all ways, and write down what they did."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.encoders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one round; nothing is written")
    quick = parser.parse_args().quick
    with tempfile.TemporaryDirectory() as temporary:
        torch.manual_seed(0)
        made = T5ForConditionalGeneration(T5Config(**SHAPE)).to(torch.bfloat16)
        made.save_pretrained(temporary)
        model = ModelConfig(model_id=temporary)
        cores = [load(EngineConfig(model=model, fuse_layers=fuse)) for fuse in (True, False)]
        ways: dict[str, Way] = {
            "parley": cores[0][1],
            "alone": cores[1][1],
            "transformers": generating(made.float()),
        }
        rows = [measure(ways, batch, 1 if quick else ROUNDS) for batch in BATCHES]
        for core, _ in cores:
            core.stop()
    if not quick:
        found = {**about(), "like": LIKE, "prompt": PROMPT, "tokens": TOKENS, "reps": ROUNDS, "rows": rows}
        (RESULTS / f"encoders-{machine()}.json").write_text(json.dumps(found, indent=1) + "\n")
        report.write()


def measure(ways: dict[str, Way], batch: int, rounds: int) -> dict[str, float]:
    """Return the tokens/s of each way, in turn, medians; one round before them isn't counted."""
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        for name, way in ways.items():
            seconds[name].append(way(batch))
    rates = {name: batch * TOKENS / statistics.median(each[1:]) for name, each in seconds.items()}
    print(f"{batch} texts: {', '.join(f'{name} {rate:.1f} tok/s' for name, rate in rates.items())}")
    return {"batch": batch, **{name: round(rate, 1) for name, rate in rates.items()}}


def load(config: EngineConfig) -> tuple[TorchCore, Way]:
    """Return a core, and how long it takes for texts."""
    core = TorchCore(config)
    core.load(print)
    frames: queue.Queue[Frame] = queue.Queue()
    core.start(frames.put)

    def run(batch: int) -> float:
        began, left = time.monotonic(), batch
        for at in range(batch):
            core.submit(greedy_request(str(at), prompt(at), TOKENS))
        while left:
            for output in frames.get(timeout=SECONDS).outputs:
                if isinstance(output, CoreFailure):
                    raise RuntimeError(output.message)
                left -= output.finish is not None
        return time.monotonic() - began

    return core, run


def generating(model: PreTrainedModel) -> Way:
    """Return how long transformers' own `generate` takes for texts, as one batch."""

    def run(batch: int) -> float:
        ids = torch.tensor([prompt(at) for at in range(batch)])
        began = time.monotonic()
        model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=TOKENS,
            min_new_tokens=TOKENS,
            do_sample=False,
        )
        return time.monotonic() - began

    return run


def prompt(at: int) -> tuple[int, ...]:
    """Return one of the prompts, the same tokens each time."""
    dice = random.Random(at)
    return tuple(dice.randrange(3, 1000) for _ in range(PROMPT))


if __name__ == "__main__":
    main()
