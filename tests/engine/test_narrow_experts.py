"""Mixtures whose experts are stored in 16 bits say what transformers says, packed or by their own code."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.cores import Session, best, config, request
from tests.engine.models import VOCABULARY, generate, prompts, save_model

PROMPTS = prompts(9, 40, 1)
TOKENS = 12
# The level with the native kernels, and without them
FAMILIES = {
    "qwen3_moe": ("fused", "paged+merged"),
    "gpt_oss": ("fused", "paged+merged"),
    "aria_text": ("fused", "paged+merged"),
    "qwen3_next": ("fused", "paged+merged"),
    "nemotron_h": ("fused", "paged+merged"),
    "deepseek_v32": ("batched", "batched"),
    "deepseek_v4": ("batched", "batched"),
    "inkling_text": ("sequential", "sequential"),
}


@pytest.mark.parametrize("native", [True, False], ids=["native kernels", "torch"])
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_transformers_own(family: str, native: bool, tmp_path: Path) -> None:
    model = save_model(family, tmp_path, dtype=torch.bfloat16)
    session = Session(config(tmp_path, native_kernels=native, max_total_tokens=64))
    with_kernels, without = FAMILIES[family]
    assert session.level == (best(with_kernels, without) if native else without)
    heard = session.run(
        request(str(at), text, tokens=TOKENS, ignore_eos=True) for at, text in enumerate(PROMPTS)
    )
    never = VOCABULARY + 1
    for at, text in enumerate(PROMPTS):
        assert heard.tokens(str(at)) == generate(model, text, TOKENS, eos_token_id=never)
    session.close()
