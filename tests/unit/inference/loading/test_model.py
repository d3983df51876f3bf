from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from transformers import AutoConfig

from inference.config import ModelConfig
from inference.loading.model import _model_class
from inference.loading.own_code import runs_code


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("llama", "LlamaForCausalLM"),
        ("chameleon", "ChameleonForConditionalGeneration"),
        ("qwen2_5_vl", "Qwen2_5_VLForConditionalGeneration"),
        ("blip-2", None),  # takes no text without an image
        ("instructblip", None),
        ("diffusion_gemma", None),  # refines a block as a whole
        ("pix2struct", None),  # makes text of images alone
        ("t5", "T5ForConditionalGeneration"),
    ],
)
def test_only_classes_that_take_text_alone_are_loaded(family: str, expected: str | None) -> None:
    found = _model_class(AutoConfig.for_model(family))
    assert (found and found.__name__) == expected


@pytest.mark.parametrize(
    ("family", "named", "expected"),
    [
        ("deepseek_v3", ["DeepseekV3ForCausalLM"], False),
        ("mpt", ["MPTForCausalLM"], False),  # which transformers writes otherwise
        ("ernie4_5", ["Ernie4_5_ForCausalLM"], False),
        ("mllama", ["MllamaForConditionalGeneration"], False),
        ("bart", ["BartForConditionalGeneration"], False),
        ("llama", None, False),
        ("llama", [], False),
        ("gpt2", ["GPT2LMHeadCustomModel"], True),
        ("own", ["LlamaForCausalLM"], True),
        ("clip", ["CLIPModel"], True),
        (None, None, True),
        (["llama"], 5, True),
    ],
)
def test_code_is_run_that_transformers_has_nothing_in_place_of(
    family: object, named: object, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "architectures": named}))
    assert runs_code(tmp_path, ModelConfig(trust_remote_code=True)) is expected
    assert not runs_code(tmp_path, ModelConfig())


@pytest.mark.parametrize(
    ("family", "named", "expected"),
    [
        ("bart", "BartForConditionalGeneration", "BartForConditionalGeneration"),
        ("bart", "BartForCausalLM", "BartForCausalLM"),
        ("bart", "", "BartForCausalLM"),
        ("llama4", "Llama4ForConditionalGeneration", "Llama4ForCausalLM"),  # that it sees is left out
    ],
)
def test_a_decoder_has_its_encoder_if_its_files_name_both(family: str, named: str, expected: str) -> None:
    found = _model_class(AutoConfig.for_model(family, architectures=[named] if named else None))
    assert found is not None
    assert found.__name__ == expected
