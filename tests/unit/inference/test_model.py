from __future__ import annotations

import pytest

pytest.importorskip("torch")

from transformers import AutoConfig

from inference.model import _model_class


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
    ],
)
def test_only_classes_that_take_text_alone_are_loaded(family: str, expected: str | None) -> None:
    found = _model_class(AutoConfig.for_model(family))
    assert (found and found.__name__) == expected
