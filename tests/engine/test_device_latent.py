"""Latent attention on the path that GPUs take: the cache keeps latents, texts are transformers' own.

Where there is a GPU the same tests run on it, by Triton's kernels and graphs.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.engine.cores import Session, request
from tests.engine.models import VOCABULARY, generate, prompts, save_model
from tests.engine.test_device_path import config

PROMPTS = prompts(10, 40, 3, 25)
TOKENS = 16
FAMILIES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu")
NEVER = VOCABULARY + 1


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_transformers_own_alone_and_in_a_batch(family: str, tmp_path: Path) -> None:
    model = save_model(family, tmp_path)
    session = Session(config(tmp_path, max_batch_size=4, max_total_tokens=64), device_path=True)
    print(session.level, session.info)
    crowd = [request(str(at), each, tokens=TOKENS, ignore_eos=True) for at, each in enumerate(PROMPTS)]
    heard = session.run(crowd)
    for at, prompt in enumerate(PROMPTS):
        assert heard.tokens(str(at)) == generate(model, prompt, TOKENS, eos_token_id=NEVER)
    session.close()
