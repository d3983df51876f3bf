"""The memory that is planned for a model's weights is what they take."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import chain
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

from inference.config import ModelConfig
from inference.files.checkpoint import Checkpoint, read_weights
from inference.kernels.native import open_library
from inference.loading.counting import held_weights
from inference.loading.level import bring_up
from inference.loading.model import load_model, read_config
from inference.loading.source import find_source
from inference.models.linears import NativeLinear
from tests.engine.cores import config
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
    settings, stored = ModelConfig(model_id=str(tmp_path)), read_weights(tmp_path)
    held = held_weights(read_config(Checkpoint(tmp_path, None), settings), stored, CPU)
    assert held.floats == stored.floats
    assert held.size(WIDE, NARROW) < 1.05 * stored.size(NARROW)
    # In 8 bits they are packed layer by layer, when those of all layers are there
    assert held.size(WIDE, 1) == held.size(WIDE, NARROW) - (held.matrices - held.experts - held.kept)


def test_experts_in_32_bits_are_planned_so_whatever_linears_are_rounded_to(tmp_path: Path) -> None:
    save_model("mixtral", tmp_path)
    planned, held = planned_and_held(tmp_path, dtype="bfloat16")
    assert planned == pytest.approx(held, rel=0.02)
    assert held > 1.3 * read_weights(tmp_path).floats * NARROW


@pytest.mark.skipif(open_library() is None, reason="the native kernels were not built")
@pytest.mark.parametrize("tied", [True, False], ids=["tied", "apart"])
@pytest.mark.parametrize("family", ["llama", "qwen2_vl"])
def test_what_8_bits_leave_as_it_is_is_planned_so(family: str, tied: bool, tmp_path: Path) -> None:
    save_model(family, tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    if tied:
        tie(tmp_path)
    plain = config(tmp_path, max_total_tokens=64)
    source = find_source(replace(plain, model=replace(plain.model, quantize="int8")), 1, lambda _: None)
    settings = source.config.model
    model = load_model(source.checkpoint, settings, source.described, source.weights, CPU, lambda _: None)
    served = bring_up(model, source._options(64))
    assert served.level == "fused"
    packed = [each.packed for each in served.packed if isinstance(each, NativeLinear)]
    taken = in_memory(model) + sum(each.n * each.k for each in packed)  # and the scales of rows
    assert source.demand().weights_bytes == pytest.approx(taken, rel=0.01)


def planned_and_held(path: Path, dtype: str = "auto") -> tuple[int, int]:
    """Return the bytes that are planned for the weights of a model in a directory, and those it takes."""
    settings, checkpoint = ModelConfig(model_id=str(path), dtype=dtype), Checkpoint(path, None)
    described, stored = read_config(checkpoint, settings), read_weights(path)
    model = load_model(checkpoint, settings, described, stored, CPU, lambda _: None)
    return held_weights(described, stored, CPU).size(WIDE, NARROW), in_memory(model)


def in_memory(model: nn.Module) -> int:
    """Return the bytes of all that a model's modules hold."""
    held: dict[int, int] = {}
    for module in model.modules():
        members = chain(module._parameters.values(), vars(module).values())
        held |= {id(each): each.nbytes for each in members if isinstance(each, Tensor) and not each.is_meta}
    return sum(held.values())


def tie(directory: Path) -> None:
    """Have a saved model's head be its embedding."""
    file = directory / "config.json"
    described = json.loads(file.read_text())
    for part in (described, described.get("text_config", {})):
        part["tie_word_embeddings"] = True
    file.write_text(json.dumps(described))
    tensors = load_file(directory / "model.safetensors")
    del tensors["lm_head.weight"]
    save_file(tensors, directory / "model.safetensors", metadata={"format": "pt"})


def widen_in_file(file: Path, named: str) -> int:
    """Have the tensors of a file with a word in their names be float32; return how many numbers these are."""
    tensors = load_file(file)
    wide = {name: each.float() for name, each in tensors.items() if named in name}
    save_file(tensors | wide, file, metadata={"format": "pt"})
    return sum(each.numel() for each in wide.values())
