"""LoRA adapters for toy models, in the files of the package peft, and the models that they make."""

from __future__ import annotations

import json
import math
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

PREFIX = "base_model.model."


@dataclass(frozen=True)
class ToyAdapter:
    """An adapter of a model's linears, whose sides are random."""

    sides: dict[str, tuple[Tensor, Tensor]]  # by a linear's path: (rank, k) and (n, rank)
    alpha: float
    rslora: bool = False

    def scale(self, rank: int) -> float:
        """Return what the product of both sides is multiplied by."""
        return self.alpha / (math.sqrt(rank) if self.rslora else rank)

    def save(self, directory: Path, dtype: torch.dtype = torch.float32, **members: Any) -> None:
        """Write the files; `members` of the description stand in the place of others."""
        directory.mkdir(parents=True, exist_ok=True)
        description = {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": "org/base",
            "bias": "none",
            "lora_alpha": self.alpha,
            "use_rslora": self.rslora,
            "r": 8,
            "target_modules": sorted({path.rpartition(".")[2] for path in self.sides}),
            **members,
        }
        (directory / "adapter_config.json").write_text(json.dumps(description))
        save_file(self.tensors(dtype), directory / "adapter_model.safetensors")

    def tensors(self, dtype: torch.dtype = torch.float32) -> dict[str, Tensor]:
        """Return the tensors as peft names them."""
        return {
            f"{PREFIX}{path}.lora_{side}.weight": weight.to(dtype)
            for path, pair in self.sides.items()
            for side, weight in zip("AB", pair, strict=True)
        }

    def merged(self, model: PreTrainedModel) -> PreTrainedModel:
        """Return a copy of a model whose weights have it in them: the oracle."""
        copy = deepcopy(model)
        for path, (down, up) in self.sides.items():
            linear = copy.get_submodule(path)
            added = (up.double() @ down.double() * self.scale(len(down))).to(linear.weight.dtype)
            with torch.no_grad():
                linear.weight += added.T if isinstance(linear, Conv1D) else added
        return copy


def toy_adapter(
    model: PreTrainedModel,
    names: tuple[str, ...] | None = None,
    *,
    rank: int = 4,
    alpha: float = 8.0,
    seed: int = 0,
    rslora: bool = False,
) -> ToyAdapter:
    """Return an adapter of the linears that end with one of `names`, or of all in the model's layers."""
    generator = torch.Generator().manual_seed(seed)
    head = model.get_output_embeddings()
    sides: dict[str, tuple[Tensor, Tensor]] = {}
    for path, module in model.named_modules():
        plain = isinstance(module, nn.Linear | Conv1D) and module is not head
        if plain and (names is None or path.endswith(names)):
            n, k = module.weight.shape if isinstance(module, nn.Linear) else module.weight.shape[::-1]
            down = torch.randn(rank, k, generator=generator) * k**-0.5
            sides[path] = down, torch.randn(n, rank, generator=generator) * 0.2
    return ToyAdapter(sides, alpha, rslora)
