"""The models that the servers are compared on: real shapes, random weights, drawn with a fixed seed.

Weights are rounded to bfloat16 and saved twice, as float32 and as bfloat16, so that every server computes the
same function. Where the folder of the peers has llama.cpp's converter, GGUF files are made of them, too.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.serving.vocabulary import write_tokenizer

SEED = 0
GGUF_TYPES = ("f32", "bf16", "f16", "q8_0")
CONVERTER = "llama_src/vendor/llama.cpp"  # within the folder of the peers: llama.cpp's sources
SCRIPTS = Path(__file__).parent / "scripts"
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Shape:
    """A model's configuration, and how its tokenizer splits."""

    kind: str  # transformers' name of the architecture
    tokenizer: str
    like: str  # whose shape it is
    config: dict[str, Any]


COMMON = {
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": True,
    "max_position_embeddings": 4096,
    "initializer_range": 0.02,
}
SHAPES = {
    "llama-135m": Shape("llama", "smollm", "SmolLM2-135M", {
        "vocab_size": 49152, "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
        "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64, "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_type": "default", "rope_theta": 100000.0}, **COMMON,
    }),
    "qwen2-0.5b": Shape("qwen2", "qwen2", "Qwen2.5-0.5B", {
        "vocab_size": 151936, "hidden_size": 896, "intermediate_size": 4864, "num_hidden_layers": 24,
        "num_attention_heads": 14, "num_key_value_heads": 2, "rms_norm_eps": 1e-6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}, **COMMON,
    }),
}  # fmt: skip


def ensure_models(folder: Path, names: list[str], say: Say = print) -> None:
    """Make what is missing in `folder`/models."""
    for name in names:
        if not all((folder / "models" / part / "words.json").exists() for part in (name, f"{name}-bf16")):
            say(f"making {name}, random weights of {SHAPES[name].like}'s shape")
            make_model(folder / "models", name)
        _ensure_gguf(folder, name, say)


def make_model(models: Path, name: str) -> None:
    """Write `models`/`name` and `models`/`name`-bf16, weights and tokenizer."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = SHAPES[name]
    torch.manual_seed(SEED)
    model = AutoModelForCausalLM.from_config(
        AutoConfig.for_model(shape.kind, **shape.config), dtype=torch.float32
    )
    for suffix, dtype in (("-bf16", torch.bfloat16), ("", torch.float32)):  # this way round: rounded in both
        directory = models / f"{name}{suffix}"
        directory.mkdir(parents=True, exist_ok=True)
        model = model.to(dtype)
        model.config.dtype = dtype
        model.save_pretrained(directory, max_shard_size="20GB")
        write_tokenizer(directory, shape.tokenizer, shape.config["vocab_size"])


def _ensure_gguf(folder: Path, name: str, say: Say) -> None:
    """Convert for the servers that read GGUF; a fault is told, and these servers then aren't measured."""
    python = folder / "venvs/hf/bin/python"
    if not python.exists() or not (folder / CONVERTER).exists():
        return
    sources = folder / CONVERTER
    environment = {**os.environ, "PYTHONPATH": f"{sources}:{sources / 'gguf-py'}"}
    for type in GGUF_TYPES:
        file = folder / "models" / f"{name}-{type}.gguf"
        if file.exists():
            continue
        say(f"converting to {file.name}")
        command: list[str | Path] = [
            python,
            SCRIPTS / "convert_gguf.py",
            SHAPES[name].tokenizer,
            folder / "models" / name,
        ]
        command += ["--outtype", type, "--outfile", file]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            say(f"{file.name} could not be made: {done.stderr.strip()[-300:]}")
            file.unlink(missing_ok=True)
