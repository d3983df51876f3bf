"""The class of transformers that a model is loaded by."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from transformers import AutoConfig

from inference.loading.classes import model_class


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
    found = model_class(AutoConfig.for_model(family))
    assert (found and found.__name__) == expected


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
    found = model_class(AutoConfig.for_model(family, architectures=[named] if named else None))
    assert found is not None
    assert found.__name__ == expected
