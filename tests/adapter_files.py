"""A LoRA adapter's files, written without torch: as small as they may be."""

from __future__ import annotations

import json
from pathlib import Path


def write_adapter(directory: Path, *, rank: int = 1, size: int = 4) -> Path:
    """Write an adapter of one linear, of `size` outputs and inputs, all of it zeros; return its directory."""
    directory.mkdir(parents=True, exist_ok=True)
    linear = "base_model.model.model.layers.0.self_attn.q_proj"
    shapes = {f"{linear}.lora_A.weight": [rank, size], f"{linear}.lora_B.weight": [size, rank]}
    nbytes = 4 * rank * size
    header = {
        name: {"dtype": "F32", "shape": shape, "data_offsets": [at * nbytes, (at + 1) * nbytes]}
        for at, (name, shape) in enumerate(shapes.items())
    }
    text = json.dumps(header).encode()
    weights = len(text).to_bytes(8, "little") + text + bytes(2 * nbytes)
    (directory / "adapter_model.safetensors").write_bytes(weights)
    (directory / "adapter_config.json").write_text(
        json.dumps({"peft_type": "LORA", "r": rank, "lora_alpha": 1})
    )
    return directory
