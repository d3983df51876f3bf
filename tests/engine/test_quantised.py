"""Models whose files were quantised say what transformers says of the weights that these stand for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from inference.config import ModelConfig
from inference.errors import ModelUnavailable
from inference.files.checkpoint import Checkpoint, read_weights
from inference.kernels.native import open_library
from inference.loading.counting import held_weights
from inference.loading.model import load_model, read_config
from inference.loading.source import find_source
from tests.engine import quantised as packed
from tests.engine.cores import Session, best, config, request
from tests.engine.models import save_model
from tests.engine.quantised import Format, describe, save_quantised
from tests.engine.quantised_experts import save_mxfp4
from tests.engine.texts import PROMPTS, TOKENS, check_texts, rounding

needs_kernels = pytest.mark.skipif(open_library() is None, reason="the native kernels were not built")
CPU = torch.device("cpu")
BFLOAT16 = torch.bfloat16
GPTQ = {"quant_method": "gptq", "desc_act": False, "sym": False}
AWQ = {"quant_method": "awq", "bits": 4, "zero_point": True}
FP8 = {"quant_method": "fp8", "activation_scheme": "dynamic"}
BNB = {"quant_method": "bitsandbytes", "bnb_4bit_quant_type": "nf4"}


def compressed(form: str, **weights: Any) -> dict[str, Any]:
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    return {"quant_method": "compressed-tensors", "format": form, "config_groups": groups}


FORMATS = {
    "gptq in 4 bits": Format(packed.gptq(4, 32), GPTQ | {"bits": 4, "group_size": 32}),
    "gptq by g_idx": Format(packed.gptq(4, 32, order=True), GPTQ | {"bits": 4, "group_size": 32}),
    "gptq without g_idx": Format(packed.gptq(4, 32, g_idx=False), GPTQ | {"bits": 4, "group_size": 32}),
    "gptq in 8 bits": Format(packed.gptq(8, -1), GPTQ | {"bits": 8, "group_size": -1}),
    "gptq in 8 bits, symmetric": Format(
        packed.gptq(8, 32, symmetric=True), GPTQ | {"bits": 8, "group_size": 32}
    ),
    "gptq in 3 bits": Format(packed.gptq(3, 32), GPTQ | {"bits": 3, "group_size": 32}, BFLOAT16),
    "gptq in 2 bits": Format(packed.gptq(2, 16), GPTQ | {"bits": 2, "group_size": 16}),
    "gptq v2": Format(
        packed.gptq(4, 32, stored_less=0),
        GPTQ | {"bits": 4, "group_size": 32, "checkpoint_format": "gptq_v2"},
    ),
    "awq": Format(packed.awq(32), AWQ | {"group_size": 32, "version": "gemm"}),
    "awq gemv": Format(packed.awq(32, "gemv"), AWQ | {"group_size": 32, "version": "gemv"}),
    "fp8 by blocks": Format(packed.fp8((32, 32)), FP8 | {"weight_block_size": [32, 32]}, BFLOAT16),
    "fp8 by uneven blocks": Format(packed.fp8((40, 40)), FP8 | {"weight_block_size": [40, 40]}, BFLOAT16),
    "fp8 by tensors": Format(packed.fp8(None, "weight_scale"), FP8, BFLOAT16),
    "fp8 of fbgemm": Format(
        packed.fp8((1, 0), "weight_scale"),
        {"quant_method": "fbgemm_fp8", "activation_scale_ub": 1200.0},
        BFLOAT16,
    ),
    "mxfp8": Format(packed.fp8((1, 32), exponents=True), {"quant_method": "mxfp8"}, BFLOAT16),
    "compressed in 4 bits": Format(
        packed.in_words_with_scales(4, 32, zeros=False),
        compressed("pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=True),
    ),
    "compressed with zero points": Format(
        packed.in_words_with_scales(4, 32, zeros=True),
        compressed(
            "pack-quantized", num_bits=4, type="int", strategy="group", group_size=32, symmetric=False
        ),
    ),
    "compressed in 8 bits": Format(
        packed.in_words_with_scales(8, 0, zeros=False),
        compressed("pack-quantized", num_bits=8, type="int", strategy="channel", group_size=None),
    ),
    "compressed int8": Format(
        packed.int8_rows, compressed("int-quantized", num_bits=8, type="int", strategy="channel"), BFLOAT16
    ),
    "compressed fp8": Format(
        packed.fp8((1, 0), "weight_scale"),
        compressed("float-quantized", num_bits=8, type="float", strategy="channel"),
        BFLOAT16,
    ),
    "bitsandbytes int8": Format(packed.bnb_8, BNB | {"load_in_8bit": True}),
    "bitsandbytes nf4": Format(packed.bnb_4(32), BNB | {"load_in_4bit": True}, BFLOAT16),
    "bitsandbytes nf4, twice": Format(packed.bnb_4(32, nested=16), BNB | {"load_in_4bit": True}, BFLOAT16),
}

# What stays in its bits where kernels compute
IN_4_BITS = (
    *("gptq in 4 bits", "gptq without g_idx", "gptq v2", "awq", "awq gemv", "compressed in 4 bits"),
    *("compressed with zero points", "bitsandbytes nf4", "bitsandbytes nf4, twice"),
)
IN_8_BITS = (
    *("fp8 by blocks", "fp8 by uneven blocks", "fp8 by tensors", "fp8 of fbgemm", "mxfp8", "compressed fp8"),
    *("compressed int8", "compressed in 8 bits", "bitsandbytes int8", "gptq in 8 bits, symmetric"),
)


@pytest.mark.parametrize("name", FORMATS)
def test_texts_are_those_of_the_weights_that_the_files_stand_for(name: str, tmp_path: Path) -> None:
    model = save_quantised("llama", tmp_path, FORMATS[name])
    assert loaded(tmp_path) == held(model)
    session = Session(config(tmp_path, max_total_tokens=64))
    assert session.level == best("fused", "paged+merged")
    assert session.info.quantization is not None
    assert session.info.quantization.endswith(becomes(name))
    if kept(name):
        model = save_quantised("llama", tmp_path, FORMATS[name], rounded=False)
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize("name", ["gptq by g_idx", "awq", "fp8 by blocks", "compressed in 4 bits"])
def test_experts_are_read_one_by_one(name: str, tmp_path: Path) -> None:
    model = save_quantised("qwen3_moe", tmp_path, FORMATS[name], rounded=not kept(name))
    session = Session(config(tmp_path, max_total_tokens=64))
    assert session.level == best("fused", "paged+merged")
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize("name", ["gptq in 4 bits", "bitsandbytes int8", "bitsandbytes nf4"])
def test_weights_that_a_model_has_the_other_way_round_are_turned(name: str, tmp_path: Path) -> None:
    model = save_quantised("gpt2", tmp_path, FORMATS[name], keep=("lm_head", "wte", "wpe"))
    session = Session(config(tmp_path, max_total_tokens=64))
    check_texts(session, model)
    session.close()


def test_experts_in_mxfp4_are_expanded(tmp_path: Path) -> None:
    model = save_mxfp4(tmp_path)
    assert loaded(tmp_path) == held(model)
    session = Session(replace(config(tmp_path, max_total_tokens=64), compress_weights=False))
    assert session.info.quantization == "mxfp4, groups of 32, expanded to bfloat16"
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize("family", ["qwen2", "mistral3", "phi3"])
def test_other_families_are_read_by_their_own_names(family: str, tmp_path: Path) -> None:
    model = save_quantised(family, tmp_path, FORMATS["awq"], rounded=not kept("awq"))
    session = Session(config(tmp_path, max_total_tokens=64))
    check_texts(session, model)
    session.close()


def test_what_a_decoder_begins_with_is_read_beside_quantised_weights(tmp_path: Path) -> None:
    save_quantised("bart+encoder", tmp_path, FORMATS["bitsandbytes nf4"])
    begins = {"decoder_start_token_id": 5, "forced_bos_token_id": 7}
    (tmp_path / "generation_config.json").write_text(json.dumps(begins))
    session = Session(config(tmp_path, max_total_tokens=64))
    assert session.info.decoder_start == (5, 7)
    session.close()


def test_the_path_of_gpus_takes_what_was_expanded(tmp_path: Path) -> None:
    model = save_quantised("llama", tmp_path, FORMATS["gptq by g_idx"])
    session = Session(config(tmp_path, max_total_tokens=64), device_path=True)
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize("name", ["gptq in 4 bits", "compressed int8", "fp8 by blocks"])
def test_weights_take_what_is_planned(name: str, tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, FORMATS[name])
    settings, checkpoint = ModelConfig(model_id=str(tmp_path)), Checkpoint(tmp_path, None)
    described, weights = read_config(checkpoint, settings), read_weights(tmp_path)
    model = load_model(checkpoint, settings, described, weights, CPU, lambda _: None)
    taken = sum(each.numel() * each.element_size() for each in {*model.parameters(), *model.buffers()})
    assert held_weights(described, weights, CPU).size(4, 2) == pytest.approx(taken, rel=0.02)


@pytest.mark.parametrize("asked", ["int8", "eetq", "fp8"])
def test_what_cannot_be_rounded_is_refused_by_the_name_that_was_given(asked: str, tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    with pytest.raises(
        ModelUnavailable, match=f"^--quantize {asked} has weights .* switched off: leave it out"
    ):
        find_source(replace(rounding(tmp_path, asked), native_kernels=False), 1, lambda _: None)


@needs_kernels
def test_what_loading_takes_is_planned_beside_what_remains(tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, FORMATS["gptq in 4 bits"])
    demand = find_source(rounding(tmp_path, "int8"), 1, lambda _: None).demand()
    floats = read_weights(tmp_path).floats
    assert demand.weights_form == "int8"
    assert demand.weights_bytes < 1.5 * floats
    assert 2 * floats < demand.loading_bytes < 2 * floats + 2**24


def test_what_was_found_is_said_with_what_it_takes(tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, FORMATS["gptq in 4 bits"])
    session = Session(config(tmp_path, max_total_tokens=64))
    found = f"gptq, 4 bits in groups of 32, {'kept in 4 bits' if open_library() else 'expanded to float16'}"
    assert session.info.quantization == found
    assert any(
        f"The files are quantised: {found}, 0 MiB that become 0 MiB" in line for line in session.progress
    )
    session.close()


@needs_kernels
@pytest.mark.parametrize("asked", ["int8", "gptq", "marlin"])
def test_quantised_weights_are_rounded_again_where_that_is_asked_for(asked: str, tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, FORMATS["gptq in 4 bits"])
    session = Session(rounding(tmp_path, asked))
    assert session.info.dtype == ("torch.int8" if asked == "int8" else "torch.float16")
    session.close()


@needs_kernels
@pytest.mark.parametrize("asked", ["eetq", "bitsandbytes", "fp8"])
def test_tgis_ways_to_8_bits_are_int8(asked: str, directory: Path) -> None:
    session, plain = Session(rounding(directory, asked)), Session(rounding(directory, "int8"))
    assert (session.info.dtype, session.info.quantization) == ("torch.int8", None)
    texts = [request("0", PROMPTS[0], tokens=TOKENS, ignore_eos=True)]
    heard, expected = (each.run(texts).outputs["0"] for each in (session, plain))
    assert [(each.token_id, each.logprob) for each in heard] == [
        (each.token_id, each.logprob) for each in expected
    ]
    assert any(f"--quantize {asked}: the files aren't quantised" in line for line in session.progress)
    session.close()
    plain.close()


def test_a_method_that_the_files_are_not_of_ends_the_start(directory: Path, tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, FORMATS["gptq in 4 bits"])
    with pytest.raises(
        ModelUnavailable, match=r"--quantize awq isn't what .* by \(gptq, 4 bits\): leave it out"
    ):
        Session(rounding(tmp_path, "awq"))
    with pytest.raises(ModelUnavailable, match="--quantize awq: the model's files aren't quantised"):
        Session(rounding(directory, "awq"))


def test_a_group_that_is_not_there_ends_the_start(tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, FORMATS["gptq in 4 bits"])
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["model.layers.1.mlp.up_proj.g_idx"][3] = 99
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ModelUnavailable, match=r"beside `model.layers.1.mlp.up_proj.qweight` names group 99 of 2"
    ):
        Session(config(tmp_path))


def test_weights_that_stand_for_another_shape_are_named_with_both(tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, FORMATS["gptq in 4 bits"])
    describe(tmp_path, intermediate_size=64)
    with pytest.raises(
        ModelUnavailable, match=r"`model.layers.0.mlp.down_proj.weight` is 64x96 in the files and"
    ):
        Session(config(tmp_path))


def kept(name: str) -> bool:
    """Return whether weights stay in the bits that a format has."""
    return name in IN_4_BITS + IN_8_BITS and open_library() is not None


def becomes(name: str) -> str:
    """Return what becomes of weights."""
    if kept(name):
        return f", kept in {4 if name in IN_4_BITS else 8} bits"
    return f", expanded to {str(FORMATS[name].dtype).removeprefix('torch.')}"


def loaded(directory: Path) -> dict[str, bytes]:
    """Return what a model's parameters hold after it was loaded for a CPU, by their names."""
    settings, checkpoint = ModelConfig(model_id=str(directory)), Checkpoint(directory, None)
    described, weights = read_config(checkpoint, settings), read_weights(directory)
    return held(load_model(checkpoint, settings, described, weights, CPU, lambda _: None))


def held(model: PreTrainedModel) -> dict[str, bytes]:
    return {name: each.float().numpy().tobytes() for name, each in model.state_dict().items()}
