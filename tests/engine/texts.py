"""A session's texts beside those of transformers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
from transformers import PreTrainedModel

from inference.config import EngineConfig
from tests.engine.cores import Session, config, request
from tests.engine.models import VOCABULARY, generate, prompts

PROMPTS = prompts(9, 40, 1)
TOKENS = 12


def check_texts(session: Session, model: PreTrainedModel) -> None:
    """Check a session's greedy texts, and how likely it says that each token is."""
    heard = session.run(
        request(str(at), text, tokens=TOKENS, ignore_eos=True) for at, text in enumerate(PROMPTS)
    )
    for at, text in enumerate(PROMPTS):
        expected = generate(model, text, TOKENS, eos_token_id=VOCABULARY + 1)
        assert heard.tokens(str(at)) == expected
        with torch.inference_mode():
            logits = model(torch.tensor([[*text, *expected]])).logits[0, len(text) - 1 : -1]
        likely = logits.log_softmax(-1)[torch.arange(TOKENS), torch.tensor(expected)]
        found = torch.tensor([each.logprob for each in heard.outputs[str(at)]])
        torch.testing.assert_close(found, likely, atol=1e-3, rtol=1e-3)


def rounding(directory: Path, asked: str) -> EngineConfig:
    """Return the configuration of a model with `--quantize`."""
    plain = config(directory, max_total_tokens=64)
    return replace(plain, model=replace(plain.model, quantize=asked))
