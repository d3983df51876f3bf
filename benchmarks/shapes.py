"""Measure models of other shapes than Llama's beside transformers: fused, layer by layer, and in 4 bits.

    python -m benchmarks.shapes [--only NAME ...] [--reps 3]

By its `generate`, in process and in turn, random weights in real shapes, stored in bfloat16 (transformers
computes with them in float32, as it is faster so on a CPU). It takes some 20 minutes. Writes
benchmarks/results/shapes-MACHINE.json and docs/benchmarks.md.
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

from transformers.utils import logging  # noqa: E402

from benchmarks import report  # noqa: E402
from benchmarks.contenders import Parley, Transformers  # noqa: E402
from benchmarks.machine import RESULTS, about, machine  # noqa: E402
from benchmarks.states import SHAPES as STATES  # noqa: E402
from benchmarks.states import WORDS, Shape, make_model  # noqa: E402

PROMPT, TOKENS, BATCHES = 128, 32, (1, 8)
ROOM = 8192  # tokens of the cache, so that all fit into memory together
# All have the same weights but for the last, which rounds them
CONTENDERS: dict[str, dict[str, Any]] = {
    "parley": {},
    "layer by layer": {"fuse_layers": False},
    "4 bits": {"quantize": "bitsandbytes-nf4"},
}


SHAPES = {
    "granite-3.1-1b-a400m": Shape("granitemoe", "Granite-3.1-1B-A400M", {
        "hidden_size": 1024, "intermediate_size": 512, "num_hidden_layers": 24, "num_attention_heads": 16,
        "num_key_value_heads": 8, "num_local_experts": 32, "num_experts_per_tok": 8,
    }),
    "qwen3-30b-a3b": Shape("qwen3_moe", "Qwen3-30B-A3B, 3 of 48 layers", {
        "hidden_size": 2048, "moe_intermediate_size": 768, "intermediate_size": 6144, "num_hidden_layers": 3,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
        "num_experts_per_tok": 8, "norm_topk_prob": True, "decoder_sparse_step": 1,
    }),
    "pythia-410m": Shape("gpt_neox", "Pythia-410M", {
        "hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24, "num_attention_heads": 16,
    }),
    "qwen3.5-0.8b": STATES["qwen3.5-0.8b"],
    "deepseek-v2-lite": Shape("deepseek_v2", "DeepSeek-V2-Lite, 3 of 27 layers", {
        "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408,
        "num_hidden_layers": 3, "num_attention_heads": 16, "num_key_value_heads": 16,
        "n_shared_experts": 2, "n_routed_experts": 64,
        "num_experts_per_tok": 6, "q_lora_rank": None, "kv_lora_rank": 512, "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64, "v_head_dim": 128, "first_k_dense_replace": 1, "norm_topk_prob": False,
        "routed_scaling_factor": 1.0,
    }),
}  # fmt: skip


def measure(directory: Path, shape: Shape, reps: int) -> dict[str, Any]:
    """Return the medians of all, in turn."""
    dice = random.Random(0)
    peer = Transformers(directory)
    ours = {
        name: Parley(directory, max_total_tokens=ROOM // 8, max_batch_total_tokens=ROOM, **settings)
        for name, settings in CONTENDERS.items()
    }
    seconds: dict[tuple[str, int], list[float]] = {}
    alike = texts = 0
    for rep in range(reps + 1):  # the first one warms up
        for batch in BATCHES:
            prompts = [[dice.randrange(3, WORDS) for _ in range(PROMPT)] for _ in range(batch)]
            runs = {"transformers": peer.run, **{name: each.run for name, each in ours.items()}}
            found = {name: run(prompts, TOKENS) for name, run in runs.items()}
            pairs = zip(found["parley"][0], found["transformers"][0], strict=True)
            alike, texts = alike + sum(one == other for one, other in pairs), texts + batch
            for name, (_, took) in found.items():
                seconds.setdefault((name, batch), []).extend([took] * bool(rep))
    for each in ours.values():
        each.close()
    names = ("transformers", *ours)
    rates = [
        {"batch": batch} | {name: batch * TOKENS / statistics.median(seconds[name, batch]) for name in names}
        for batch in BATCHES
    ]
    for rate in rates:
        print(shape.like, {name: round(value, 1) for name, value in rate.items()}, flush=True)
    return {
        "like": shape.like,
        "level": ours["parley"].level,
        "same_texts": alike / texts,
        "rates": rates,
    }


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
        sizes = {"prompt": PROMPT, "tokens": TOKENS, "words": WORDS}
        found = {**about(), **sizes, "reps": arguments.reps, "rows": rows}
        (RESULTS / f"shapes-{machine()}.json").write_text(json.dumps(found, indent=1) + "\n")
        report.write()


def _arguments() -> argparse.Namespace:
    formatter = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(
        "python -m benchmarks.shapes", description=__doc__, formatter_class=formatter
    )
    parser.add_argument("--only", nargs="+", choices=list(SHAPES), help="some shapes; nothing is written")
    parser.add_argument("--reps", type=int, default=3, help="of which the medians are taken")
    return parser.parse_args()


if __name__ == "__main__":
    main()
