"""LoRA adapters with random numbers, in the files of the package peft."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file

from inference.files.safetensors import read_header

LINEARS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def save_adapters(model: Path, directory: Path, count: int, rank: int) -> tuple[str, ...]:
    """Write adapters of all linears of a model's layers, in bfloat16; return them as settings."""
    directory.mkdir()
    named = []
    for at in range(count):
        _save(model, directory / str(at), rank, torch.Generator().manual_seed(at))
        named.append(f"adapter-{at}={directory / str(at)}")
    return tuple(named)


def _save(model: Path, directory: Path, rank: int, generator: torch.Generator) -> None:
    tensors = {}
    for name, tensor in read_header(model / "model.safetensors").items():
        linear = name.removesuffix(".weight")
        if linear.endswith(LINEARS):
            n, k = tensor.shape
            down = torch.randn(rank, k, generator=generator) * k**-0.5
            up = torch.randn(n, rank, generator=generator) * 0.05
            tensors[f"base_model.model.{linear}.lora_A.weight"] = down.bfloat16()
            tensors[f"base_model.model.{linear}.lora_B.weight"] = up.bfloat16()
    directory.mkdir()
    description = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "bias": "none"}
    (directory / "adapter_config.json").write_text(json.dumps(description))
    save_file(tensors, directory / "adapter_model.safetensors")
