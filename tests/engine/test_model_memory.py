"""The memory that is planned for a model's weights is what they take."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
import torch
from torch import Tensor

from inference.checkpoint import Checkpoint, read_weights
from inference.config import ModelConfig
from inference.model import held_weights, load_model, read_config
from tests.engine.models import save_model

CPU = torch.device("cpu")
NARROW, WIDE = 2, 4  # bytes of a number


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "mixtral", "mistral3"])
def test_weights_take_what_is_planned(family: str, tmp_path: Path) -> None:
    save_model(family, tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    config, checkpoint = ModelConfig(model_id=str(tmp_path)), Checkpoint(tmp_path, None)
    described, stored = read_config(checkpoint, config), read_weights(tmp_path)
    model = load_model(checkpoint, config, described, stored, CPU, lambda _: None)
    held: dict[int, int] = {}
    for module in model.modules():
        members = chain(module._parameters.values(), vars(module).values())
        held |= {id(each): each.nbytes for each in members if isinstance(each, Tensor)}
    planned = held_weights(described, stored, CPU).size(WIDE, NARROW)
    assert planned == pytest.approx(sum(held.values()), rel=0.02)


def test_experts_that_are_widened_are_planned_so(tmp_path: Path) -> None:
    save_model("mixtral", tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    config, stored = ModelConfig(model_id=str(tmp_path)), read_weights(tmp_path)
    held = held_weights(read_config(Checkpoint(tmp_path, None), config), stored, CPU)
    assert held.floats == stored.floats
    assert held.size(WIDE, NARROW) > 1.5 * stored.size(NARROW)
