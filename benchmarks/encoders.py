"""Measure texts of a model with an encoder and a decoder, beside transformers' own `generate`.

    python -m benchmarks.encoders [--quick]

In process, on the shapes of FLAN-T5-base and NLLB-200-distilled-600M with random weights in bfloat16.
transformers computes the same weights in float32, as many texts as one batch. Parley's ways alternate with
it: as it comes, and with `--fuse-layers false`, by which texts go on one at a time. Writes
benchmarks/results/encoders-MACHINE.json and docs/benchmarks.md.
"""

from __future__ import annotations

from inference.environment import prepare_environment

prepare_environment()

import argparse  # noqa: E402
import json  # noqa: E402
import random  # noqa: E402
import statistics  # noqa: E402
import tempfile  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForSeq2SeqLM,
    M2M100Config,
    M2M100ForConditionalGeneration,
    PreTrainedConfig,
    PreTrainedModel,
    T5Config,
    T5ForConditionalGeneration,
)

from benchmarks import report  # noqa: E402
from benchmarks.contenders import Parley, Transformers  # noqa: E402
from benchmarks.machine import RESULTS, about, machine  # noqa: E402

PROMPT, TOKENS, BATCHES, ROUNDS = 128, 64, (1, 8), 3
VOCABULARY = 32_000  # of prompts
SHAPES: dict[str, tuple[type[PreTrainedModel], PreTrainedConfig]] = {
    "FLAN-T5-base": (
        T5ForConditionalGeneration,
        T5Config(
            vocab_size=32128,
            d_model=768,
            d_kv=64,
            d_ff=2048,
            num_layers=12,
            num_heads=12,
            feed_forward_proj="gated-gelu",
            tie_word_embeddings=False,
            decoder_start_token_id=0,
            n_positions=512,
        ),
    ),
    "NLLB-200-distilled-600M": (
        M2M100ForConditionalGeneration,
        M2M100Config(vocab_size=256206, scale_embedding=True),
    ),
}


def main() -> None:
    """Measure all ways, and write down what they did."""
    parser = argparse.ArgumentParser(
        "python -m benchmarks.encoders",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--quick", action="store_true", help="one round; nothing is written")
    rounds = 1 if parser.parse_args().quick else ROUNDS
    rows = [row for like in SHAPES for row in rows_of(like, rounds)]
    if rounds == ROUNDS:
        found = {**about(), "prompt": PROMPT, "tokens": TOKENS, "reps": ROUNDS, "rows": rows}
        (RESULTS / f"encoders-{machine()}.json").write_text(json.dumps(found, indent=1) + "\n")
        report.write()


def rows_of(like: str, rounds: int) -> list[dict[str, Any]]:
    """Return what was measured of a shape."""
    kind, config = SHAPES[like]
    with tempfile.TemporaryDirectory() as temporary:
        directory = Path(temporary)
        torch.manual_seed(0)
        kind(config).to(torch.bfloat16).save_pretrained(directory)
        ways: dict[str, Parley | Transformers] = {
            "parley": Parley(directory),
            "alone": Parley(directory, fuse_layers=False),
            "transformers": Transformers(directory, AutoModelForSeq2SeqLM),
        }
        rows = [{"like": like, **measure(ways, like, batch, rounds)} for batch in BATCHES]
        for each in ways.values():
            if isinstance(each, Parley):
                each.close()
    return rows


def measure(ways: dict[str, Parley | Transformers], like: str, batch: int, rounds: int) -> dict[str, float]:
    """Return the tokens/s of each way, in turn, medians; one round before them isn't counted."""
    dice = random.Random(batch)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for _ in range(rounds + 1):
        prompts = [[dice.randrange(3, VOCABULARY) for _ in range(PROMPT)] for _ in range(batch)]
        for name, way in ways.items():
            seconds[name].append(way.run(prompts, TOKENS)[1])
    rates = {name: batch * TOKENS / statistics.median(each[1:]) for name, each in seconds.items()}
    told = ", ".join(f"{name} {rate:.1f} tok/s" for name, rate in rates.items())
    print(f"{like}, {batch} texts: {told}", flush=True)
    return {"batch": batch, **{name: round(rate, 1) for name, rate in rates.items()}}


if __name__ == "__main__":
    main()
