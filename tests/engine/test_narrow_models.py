"""Models stored in bfloat16 say what transformers says in float32, whatever their code does with weights."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from tests.engine.cores import Session, config, request
from tests.engine.models import VOCABULARY, generate, prompts, save_model

PROMPTS = prompts(9, 40, 1)
TOKENS = 12
# Of each, code that asks a linear for its weight, or an embedding that isn't asked for rows by their ids
FAMILIES = {
    "mamba": "multiplies with a weight by itself",
    "jamba": "multiplies with a weight by itself",
    "mamba2": "asks for the dtype of its head's weight",
    "hunyuan_v1_moe": "asks for the dtype of its router's weight",
    "deepseek_v32": "asks for the dtype of its indexer's weight",
    "bart": "has an embedding of positions that finds them itself",
    "biogpt": "has an embedding of positions that is told where they are",
}


@pytest.mark.parametrize("native", [True, False], ids=["native kernels", "torch"])
@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_transformers_own(family: str, native: bool, tmp_path: Path) -> None:
    model = save_model(family, tmp_path, dtype=torch.bfloat16)
    session = Session(config(tmp_path, native_kernels=native, max_total_tokens=64))
    heard = session.run(
        request(str(at), text, tokens=TOKENS, ignore_eos=True) for at, text in enumerate(PROMPTS)
    )
    for at, text in enumerate(PROMPTS):
        assert heard.tokens(str(at)) == generate(model, text, TOKENS, eos_token_id=VOCABULARY + 1)
    session.close()
