"""Measure models whose layers keep a state beside transformers' own `generate`, and their prefix cache.

    python -m benchmarks.states [--only NAME ...] [--reps 3]

In process and in turn, random weights in real shapes, stored in bfloat16 (transformers computes with them in
float32, as it is faster so on a CPU). Writes benchmarks/results/states-MACHINE.json and docs/benchmarks.md.
"""

from __future__ import annotations

from inference.environment import prepare_environment

prepare_environment()

import argparse  # noqa: E402
import json  # noqa: E402
import random  # noqa: E402
import statistics  # noqa: E402
import tempfile  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from dataclasses import dataclass  # noqa: E402
from pathlib import Path  # noqa: E402
from typing import Any  # noqa: E402

import torch  # noqa: E402
from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402
from transformers.utils import logging  # noqa: E402

from benchmarks import report  # noqa: E402
from benchmarks.contenders import Parley, Transformers  # noqa: E402
from benchmarks.machine import RESULTS, about, machine  # noqa: E402
from benchmarks.serving.models import COMMON  # noqa: E402

PROMPT, TOKENS, BATCHES = 128, 32, (1, 8)
TALK = 1024  # tokens of a conversation that goes on by
TURN = 32  # of its next message
WORDS = 32_000  # of every vocabulary, so that heads weigh alike


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's configuration."""

    kind: str  # transformers' name of the architecture
    like: str  # whose layers it has
    config: dict[str, Any]


SHAPES = {
    "qwen3.5-0.8b": Shape("qwen3_5_text", "Qwen3.5-0.8B", {
        "hidden_size": 1024, "num_hidden_layers": 24, "intermediate_size": 3584, "num_attention_heads": 8,
        "num_key_value_heads": 2, "head_dim": 256, "linear_num_key_heads": 16,
        "linear_num_value_heads": 16, "linear_key_head_dim": 128, "linear_value_head_dim": 128,
    }),
    "lfm2-350m": Shape("lfm2", "LFM2-350M", {
        "hidden_size": 1024, "num_hidden_layers": 16, "intermediate_size": 6656,
        "num_attention_heads": 16, "num_key_value_heads": 8,
        "layer_types": ["conv", "conv", "full_attention"] * 3 + ["conv", "full_attention"] * 3 + ["conv"],
    }),
    "granite-4.0-h-350m": Shape("granitemoehybrid", "Granite-4.0-H-350M", {
        "hidden_size": 768, "num_hidden_layers": 32, "intermediate_size": 2048,
        "shared_intermediate_size": 2048, "num_attention_heads": 12, "num_key_value_heads": 4,
        "num_local_experts": 0, "num_experts_per_tok": 0, "mamba_n_heads": 48, "mamba_d_head": 32,
        "mamba_d_state": 128, "mamba_n_groups": 1, "mamba_expand": 2, "position_embedding_type": "nope",
        "layer_types": (["mamba"] * 7 + ["attention"]) * 4,
    }),
    "mamba-130m": Shape("mamba", "mamba-130m", {
        "hidden_size": 768, "num_hidden_layers": 24, "state_size": 16, "intermediate_size": 1536,
        "time_step_rank": 48,
    }),
}  # fmt: skip


def make_model(directory: Path, shape: Shape) -> None:
    """Save a random model in bfloat16."""
    config = AutoConfig.for_model(shape.kind, **shape.config, **COMMON, vocab_size=WORDS)
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).to(torch.bfloat16).save_pretrained(directory)


def measure(directory: Path, shape: Shape, reps: int) -> dict[str, Any]:
    """Return the medians of both, in turn, and of a conversation's next turn with and without its past."""
    dice = random.Random(0)
    peer, parley = Transformers(directory), Parley(directory, max_total_tokens=2048)
    seconds: dict[tuple[str, int], list[float]] = {}
    alike = texts = 0
    turns: dict[str, list[float]] = {"whole": [], "kept": []}
    for rep in range(reps + 1):  # the first one warms up
        for batch in BATCHES:
            prompts = [_prompt(dice, PROMPT) for _ in range(batch)]
            found = {each.name: each.run(prompts, TOKENS) for each in (peer, parley)}
            pairs = zip(found["parley"][0], found["transformers"][0], strict=True)
            alike, texts = alike + sum(one == other for one, other in pairs), texts + batch
            for name, (_, took) in found.items():
                seconds.setdefault((name, batch), []).extend([took] * bool(rep))
        for name, took in zip(turns, _turn(parley, dice), strict=True):
            turns[name].extend([took] * bool(rep))
    parley.close()
    rates = {key: key[1] * TOKENS / statistics.median(each) for key, each in seconds.items()}
    for batch in BATCHES:
        ours, other = rates["parley", batch], rates["transformers", batch]
        print(
            f"{shape.like}, {batch} at once: {other:.1f} -> {ours:.1f} tokens/s, x{ours / other:.2f}",
            flush=True,
        )
    whole, kept = (1000 * statistics.median(each) for each in turns.values())
    print(f"next turn: {whole:.0f} -> {kept:.0f} ms; {alike} of {texts} texts are the same", flush=True)
    return {
        "like": shape.like,
        "level": parley.level,
        "same_texts": alike / texts,
        "rates": [
            {"batch": batch, "parley": rates["parley", batch], "transformers": rates["transformers", batch]}
            for batch in BATCHES
        ],
        "turn_ms": {"whole": whole, "kept": kept},
    }


def _turn(parley: Parley, dice: random.Random) -> Iterator[float]:
    """Yield how long the first token of a conversation's next turn takes, its past unknown and known."""
    past, message = _prompt(dice, TALK), _prompt(dice, TURN)
    (answer,), _ = parley.run([past], TOKENS)
    stranger = [*past, *answer, *message]
    stranger[0] = (stranger[0] + 1) % WORDS or 1
    yield parley.run([stranger], 1)[1]
    yield parley.run([[*past, *answer, *message]], 1)[1]


def _prompt(dice: random.Random, count: int) -> list[int]:
    return [dice.randrange(3, WORDS) for _ in range(count)]


def main() -> None:
    """Measure all shapes, and write them down."""
    arguments = _arguments()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    rows = []
    for name in arguments.only or SHAPES:
        with tempfile.TemporaryDirectory() as directory:
            make_model(Path(directory), SHAPES[name])
            rows.append(measure(Path(directory), SHAPES[name], arguments.reps))
    if not arguments.only:
        sizes = {"prompt": PROMPT, "tokens": TOKENS, "talk": TALK, "turn": TURN, "words": WORDS}
        found = {**about(), **sizes, "reps": arguments.reps, "rows": rows}
        (RESULTS / f"states-{machine()}.json").write_text(json.dumps(found, indent=1) + "\n")
        report.write()


def _arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.states", description=__doc__, formatter_class=formatter
    )
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), help="some shapes; nothing is written")
    parser.add_argument("--reps", type=int, default=3, help="of which the medians are taken")
    return parser.parse_args()


if __name__ == "__main__":
    main()
