"""Toys of gpt-oss, whose experts are stored in MXFP4."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from tests.engine.models import save_model
from tests.engine.quantised import Floats, describe

_E2M1 = np.array([sign * each for sign in (1, -1) for each in (0, 0.5, 1, 1.5, 2, 3, 4, 6)], dtype=np.float32)


def save_mxfp4(directory: Path) -> PreTrainedModel:
    """Return a toy of gpt-oss whose experts are stored as its files have them, as `save_quantised` does."""
    model = save_model("gpt_oss", directory).to(torch.bfloat16)
    model.save_pretrained(directory)
    plain = load_file(directory / "model.safetensors")
    files = dict(plain)
    for name in plain:
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            files |= _mxfp4(name, files.pop(name).float().numpy(), plain)
    save_file(plain, directory / "model.safetensors", metadata={"format": "pt"})
    oracle = type(model).from_pretrained(directory, dtype=torch.float32).eval()
    save_file(files, directory / "model.safetensors", metadata={"format": "pt"})
    describe(directory, quantization_config={"quant_method": "mxfp4", "modules_to_not_convert": ["lm_head"]})
    return oracle


def _mxfp4(name: str, weights: Floats, plain: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return experts (experts, inputs, outputs) in blocks; `plain` is given what they stand for."""
    experts, inputs, outputs = weights.shape
    blocks = np.zeros((experts, outputs, inputs // 32, 16), np.uint8)
    scales = np.zeros((experts, outputs, inputs // 32), np.uint8)
    expanded = np.zeros_like(weights)
    for expert, output, block in np.ndindex(scales.shape):
        own = np.s_[expert, block * 32 : (block + 1) * 32, output]
        exponent = math.ceil(math.log2(float(np.abs(weights[own]).max()) / 6))
        scaled = weights[own] / np.float32(2.0**exponent)
        numbers = np.abs(_E2M1[None, :] - scaled[:, None]).argmin(1)
        scales[expert, output, block] = exponent + 127
        blocks[expert, output, block] = numbers[0::2] | numbers[1::2] << 4
        expanded[own] = _E2M1[numbers] * np.float32(2.0**exponent)
    plain[name] = torch.from_numpy(expanded).bfloat16()
    return {f"{name}_blocks": torch.from_numpy(blocks), f"{name}_scales": torch.from_numpy(scales)}
