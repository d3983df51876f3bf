"""A model whose files don't go together is refused with what to mend: never served, never a traceback."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from inference.config import EngineConfig, ModelConfig
from inference.engine.engine import TorchCore
from inference.errors import ModelUnavailable
from inference.files.checkpoint import Checkpoint, read_weights
from inference.loading.model import load_model, read_config
from inference.loading.obstacles import check_loaded
from inference.types import ModelInfo
from tests.engine.models import EOS, make_model, save_model

LAYER = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def model(directory: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(directory, tmp_path / "model"))


def load(path: Path, **settings: Any) -> tuple[ModelInfo, list[str]]:
    core = TorchCore(EngineConfig(model=ModelConfig(model_id=str(path), **settings)))
    said: list[str] = []
    info = core.load(said.append)
    core.stop()
    return info, said


def refusal(path: Path, **settings: Any) -> str:
    with pytest.raises(ModelUnavailable) as refused:
        load(path, **settings)
    return str(refused.value)


def describe(path: Path, **members: Any) -> None:
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | members))


def change(path: Path, edit: Callable[[dict[str, Tensor]], object]) -> None:
    tensors = {name: each.clone() for name, each in load_file(path / "model.safetensors").items()}
    edit(tensors)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("family", "lacking", "beside"),
    [
        ("qwen3_moe", ".0.mlp.experts.1.down_proj.weight", ".0.mlp.experts.1.gate_proj.weight"),
        ("mixtral", ".1.block_sparse_moe.experts.1.w1.weight", ".1.block_sparse_moe.experts.1.w2.weight"),
    ],
)
@pytest.mark.parametrize("indexed", [True, False], ids=["index", "one file"])
def test_the_weight_of_an_expert_that_files_lack_is_named(
    family: str, lacking: str, beside: str, tmp_path: Path, *, indexed: bool
) -> None:
    save_model(family, tmp_path)
    name, other = f"model.layers{lacking}", f"model.layers{beside}"
    change(tmp_path, lambda tensors: tensors.pop(name))
    where = f"model.safetensors has `{other}`"
    if indexed:
        written = {"metadata": {}, "weight_map": {name: "model.safetensors", other: "model.safetensors"}}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(written))
        where = "by model.safetensors.index.json it is in model.safetensors"
    found = refusal(tmp_path)
    assert f"its files lack `{name}`, and have other weights of these experts; {where}: download" in found


def test_an_expert_that_files_lack_wholly_is_named(tmp_path: Path) -> None:
    def drop(tensors: dict[str, Tensor]) -> None:
        for name in [each for each in tensors if ".experts.1." in each and "layers.1." in each]:
            del tensors[name]

    save_model("qwen3_moe", tmp_path)
    change(tmp_path, drop)
    found = refusal(tmp_path)
    assert "its files lack `model.layers.1.mlp.experts.1.down_proj.weight` and 2 more, and have" in found


def test_a_part_that_no_expert_has_is_named(tmp_path: Path) -> None:
    def drop(tensors: dict[str, Tensor]) -> None:
        for expert in range(4):
            del tensors[f"model.layers.1.mlp.experts.{expert}.up_proj.weight"]

    save_model("qwen3_moe", tmp_path)
    change(tmp_path, drop)
    found = refusal(tmp_path)
    assert "its files lack `model.layers.1.mlp.experts.gate_up_proj, part 2 of 2`, and have" in found


@pytest.mark.parametrize("name", [LAYER, "lm_head.weight", "model.norm.weight"])
def test_weights_that_are_missing_are_not_made_up(name: str, model: Path) -> None:
    change(model, lambda tensors: tensors.pop(name))
    assert f"its files lack 1 of the weights that LlamaForCausalLM has, `{name}`" in refusal(model)


@pytest.mark.parametrize(
    ("family", "buffer"), [("minimax", "self_attn.slope_rate"), ("glm4_moe", "gate.e_score_correction_bias")]
)
def test_buffers_that_are_missing_are_computed_and_told(
    family: str, buffer: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = dict(save_model(family, tmp_path).named_buffers())
    name = next(name for name in expected if name.endswith(buffer))
    change(tmp_path, lambda tensors: tensors.pop(name))
    described, stored = read_config(Checkpoint(tmp_path, None), ModelConfig()), read_weights(tmp_path)
    with caplog.at_level(logging.INFO):
        found = load_model(
            Checkpoint(tmp_path, None), ModelConfig(), described, stored, torch.device("cpu"), print
        )
    assert f"the files lack `{name}`, computed anew" in caplog.text
    assert torch.equal(found.get_buffer(name), expected[name])


def test_buffers_of_a_model_that_brings_its_code_are_not_made_up() -> None:
    model = make_model("glm4_moe")
    name = next(name for name, _ in model.named_buffers() if name.endswith("e_score_correction_bias"))
    missing = {"mismatched_keys": set(), "missing_keys": {name}}
    check_loaded("own", model, missing)
    model.__class__ = type("Brought", (type(model),), {"__module__": "transformers_modules.brought"})
    with pytest.raises(ModelUnavailable, match=rf"lack 1 of the weights that Brought has, `{name}`"):
        check_loaded("remote", model, missing)


def test_weights_of_another_model_are_refused(model: Path) -> None:
    describe(model, model_type="bert", architectures=["BertForMaskedLM"])
    assert "of the weights that BertLMHeadModel has, `bert.embeddings" in refusal(model)
    assert " more: they aren't whole, or are another model's" in refusal(model)


def test_weights_of_another_shape_are_named_with_both(model: Path) -> None:
    rows, columns = load_file(model / "model.safetensors")["lm_head.weight"].shape

    def cut(tensors: dict[str, Tensor]) -> None:
        tensors["lm_head.weight"] = tensors["lm_head.weight"][:-7].clone()

    change(model, cut)
    said = refusal(model)
    assert (
        f"`lm_head.weight` is {rows - 7}x{columns} in the files and {rows}x{columns} by config.json" in said
    )
    assert "ignore_mismatched_sizes" not in said


@pytest.mark.parametrize(
    ("quantised", "message"),
    [
        ({"quant_method": "exl2", "bits": 4}, "by a method that isn't known: .* 'exl2'"),
        ({}, "by a method that isn't known"),
        ({"quant_method": "hqq", "nbits": 4}, "by a method that isn't known: .* 'hqq'"),
        (
            {"quant_method": "gptq", "checkpoint_format": "bitblas"},
            "by gptq, and its form 'bitblas' can't be",
        ),
        ({"quant_method": "awq", "version": "gemv_fast"}, "by awq, and its form 'gemv_fast' of 'autoawq'"),
    ],
)
def test_a_model_quantised_in_another_way_is_refused(
    quantised: dict[str, Any], message: str, model: Path
) -> None:
    describe(model, quantization_config=quantised)
    with pytest.raises(ModelUnavailable, match=f"{message}.*give the model that it was made of"):
        load(model)


def test_quantised_weights_of_another_method_are_not_taken_for_numbers(model: Path) -> None:
    describe(model, quantization_config={"quant_method": "gptq", "bits": 4, "group_size": 32})
    change(model, lambda tensors: tensors.update({LAYER: tensors[LAYER].to(torch.int8)}))
    assert f"its files have `{LAYER}` in I8, which isn't known of that method" in refusal(model)
    change(model, lambda tensors: tensors.update({LAYER: tensors[LAYER].to(torch.float8_e4m3fn)}))
    assert f"its files have `{LAYER}` in F8_E4M3, which isn't known of that method" in refusal(model)


def test_a_model_that_only_says_that_it_is_quantised_is_served(model: Path) -> None:
    expected, _ = load(model)
    describe(model, quantization_config={"quant_method": "bitsandbytes", "load_in_8bit": True})
    assert load(model)[0] == replace(expected, id=str(model))


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"hidden_size": "64"}, "config.json: Field 'hidden_size' expected int, got str"),
        ({"hidden_size": None}, "config.json: Field 'hidden_size' expected int, got NoneType"),
        ({"num_attention_heads": 5, "head_dim": None}, "is not a multiple of the number of attention heads"),
        ({"num_attention_heads": 0}, "config.json says that `num_attention_heads` is 0"),
        ({"dtype": "float99"}, "config.json says that `dtype` is 'float99'"),
        ({"hidden_act": "swishx"}, "config.json says that `hidden_act` is 'swishx'"),
    ],
)
def test_a_configuration_of_other_types_is_explained(
    members: dict[str, Any], message: str, model: Path
) -> None:
    describe(model, **members)
    assert message in refusal(model)


def test_a_broken_generation_config_is_refused(model: Path) -> None:
    (model / "generation_config.json").write_text("{broken")
    assert "generation_config.json can't be read as JSON" in refusal(model)


def test_tokens_that_end_a_text_are_those_written_and_the_tokenizers(model: Path) -> None:
    assert load(model)[0].eos_token_ids == (EOS,)
    (model / "generation_config.json").unlink()
    (model / "tokenizer_config.json").write_text(json.dumps({"eos_token": "</s>"}))
    (model / "tokenizer.json").write_text(json.dumps({"added_tokens": [{"id": 9, "content": "</s>"}]}))
    describe(model, eos_token_id=5)
    assert load(model)[0].eos_token_ids == (5, 9)


def test_pickles_are_planned_and_kept_as_safetensors_are(model: Path) -> None:
    def narrow(tensors: dict[str, Tensor]) -> None:
        tensors.update({name: each.to(torch.bfloat16) for name, each in tensors.items()})

    describe(model, dtype="bfloat16")
    change(model, narrow)
    expected = load(model)[1]
    torch.save(load_file(model / "model.safetensors"), model / "pytorch_model.bin")
    (model / "model.safetensors").unlink()
    found = load(model, trust_remote_code=True)[1]
    assert [line.split(" free")[0].rpartition(" of ")[0] for line in found[:1]] == [
        line.split(" free")[0].rpartition(" of ")[0] for line in expected[:1]
    ]
    assert found[3:] == expected[3:]  # how many linears are packed, and in how many bits


def test_a_broken_pickle_is_named(model: Path) -> None:
    (model / "model.safetensors").unlink()
    (model / "pytorch_model.bin").write_bytes(b"x")
    assert "pytorch_model.bin` can't be read as weights alone" in refusal(model, trust_remote_code=True)
