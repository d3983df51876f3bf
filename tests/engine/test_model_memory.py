"""The memory that is planned for a model's weights is what they take."""

from __future__ import annotations

from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from inference.checkpoint import Checkpoint, read_weights
from inference.config import ModelConfig
from inference.model import held_weights, load_model, read_config
from tests.engine.models import save_model

CPU = torch.device("cpu")
NARROW, WIDE = 2, 4  # bytes of a number


@pytest.mark.parametrize("family", ["llama", "qwen3_moe", "mixtral", "mistral3"])
def test_weights_take_what_is_planned(family: str, tmp_path: Path) -> None:
    save_model(family, tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    planned, held = planned_and_held(tmp_path)
    assert planned == pytest.approx(held, rel=0.02)


@pytest.mark.parametrize("wide", ["norm", "k_proj"])
@pytest.mark.parametrize("family", ["llama", "mistral3", "qwen2_vl", "gemma3", "llava"])
def test_matrices_stay_in_16_bits_beside_what_is_in_32(family: str, wide: str, tmp_path: Path) -> None:
    save_model(family, tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    narrow = read_weights(tmp_path).floats * NARROW
    widened = widen_in_file(tmp_path / "model.safetensors", wide)
    planned, held = planned_and_held(tmp_path)
    assert planned == pytest.approx(held, rel=0.02)
    # Twice as much it would be if all were widened; what toys have besides matrices always is
    assert narrow <= held <= (narrow + widened * (WIDE - NARROW)) * 1.3


@pytest.mark.filterwarnings("ignore:.*weight_norm:FutureWarning")  # models made with it are still about
def test_a_weight_that_is_computed_of_others_is_planned_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_model("llama", tmp_path)
    made = LlamaForCausalLM._from_config

    def normed(config: LlamaConfig) -> LlamaForCausalLM:
        model: LlamaForCausalLM = made(config)
        nn.utils.weight_norm(model.lm_head)
        return model

    monkeypatch.setattr(LlamaForCausalLM, "_from_config", normed)
    stored = read_weights(tmp_path)
    described = read_config(Checkpoint(tmp_path, None), ModelConfig(model_id=str(tmp_path)))
    assert stored.floats < held_weights(described, stored, CPU).floats < 1.1 * stored.floats


@pytest.mark.parametrize("family", ["mixtral", "gpt_oss"])
def test_experts_are_planned_in_the_16_bits_that_they_are_held_in(family: str, tmp_path: Path) -> None:
    save_model(family, tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    config, stored = ModelConfig(model_id=str(tmp_path)), read_weights(tmp_path)
    held = held_weights(read_config(Checkpoint(tmp_path, None), config), stored, CPU)
    assert held.floats == stored.floats
    assert held.size(WIDE, NARROW) < 1.05 * stored.size(NARROW)
    # In 8 bits they are packed layer by layer, when those of all layers are there
    assert held.size(WIDE, 1) == held.size(WIDE, NARROW) - (held.matrices - held.experts)


def test_experts_in_32_bits_are_planned_so_whatever_linears_are_rounded_to(tmp_path: Path) -> None:
    save_model("mixtral", tmp_path)
    planned, held = planned_and_held(tmp_path, dtype="bfloat16")
    assert planned == pytest.approx(held, rel=0.02)
    assert held > 1.3 * read_weights(tmp_path).floats * NARROW


def planned_and_held(path: Path, dtype: str = "auto") -> tuple[int, int]:
    """Return the bytes that are planned for the weights of a model in a directory, and those it takes."""
    config, checkpoint = ModelConfig(model_id=str(path), dtype=dtype), Checkpoint(path, None)
    described, stored = read_config(checkpoint, config), read_weights(path)
    model = load_model(checkpoint, config, described, stored, CPU, lambda _: None)
    held: dict[int, int] = {}
    for module in model.modules():
        members = chain(module._parameters.values(), vars(module).values())
        held |= {id(each): each.nbytes for each in members if isinstance(each, Tensor)}
    return held_weights(described, stored, CPU).size(WIDE, NARROW), sum(held.values())


def widen_in_file(file: Path, named: str) -> int:
    """Have the tensors of a file with a word in their names be float32; return how many numbers these are."""
    tensors = load_file(file)
    wide = {name: each.float() for name, each in tensors.items() if named in name}
    save_file(tensors | wide, file, metadata={"format": "pt"})
    return sum(each.numel() for each in wide.values())
