"""Latent attention on the path that GPUs take: the cache keeps latents, texts are transformers' own.

Where there is a GPU the same tests run on it, by Triton's kernels and graphs.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import log_softmax
from transformers import PreTrainedModel
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3Attention

from inference.config import ModelConfig
from inference.gpu.latents import HeadProjection
from inference.gpu.levels import DeviceClimb
from inference.gpu.ops import torch_ops
from inference.levels.served import Level, Served
from inference.loading.level import Options, bring_up
from inference.models.latent import EXPANDS
from tests.engine.cores import Session, request
from tests.engine.models import VOCABULARY, generate, make_model, prompts, save_model
from tests.engine.test_device_path import config, said
from tests.unit.inference.toy_models import toy

PROMPTS = prompts(10, 40, 3, 25)
TOKENS = 16
FAMILIES = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3", "youtu")
NEVER = VOCABULARY + 1


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> list[Served]:
    """Return the level of each model that is served from now on."""
    found: list[Served] = []
    paged = DeviceClimb.paged

    def noting(climb: DeviceClimb) -> Served | None:
        level = paged(climb)
        if level is not None:
            found.append(level)
        return level

    monkeypatch.setattr(DeviceClimb, "paged", noting)
    return found


def kept(model: PreTrainedModel, *, latents: bool, itemsize: int = 4) -> int:
    """Return the bytes of a token in the cache of all layers."""
    of, can = model.config, hasattr(DeepseekV3Attention, EXPANDS)  # not in older releases of transformers
    if latents and can:
        numbers = of.kv_lora_rank + of.qk_rope_head_dim
    else:
        numbers = of.num_attention_heads * (of.qk_nope_head_dim + of.qk_rope_head_dim + of.v_head_dim)
    return int(of.num_hidden_layers * numbers * itemsize)


def check_text(session: Session, family: str) -> None:
    """Assert that one text is transformers' own."""
    heard = session.run([request("0", PROMPTS[0], tokens=TOKENS, ignore_eos=True)])
    assert heard.tokens("0") == generate(make_model(family), PROMPTS[0], TOKENS, eos_token_id=NEVER)


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_transformers_own_alone_and_in_a_batch(
    family: str, tmp_path: Path, served: list[Served]
) -> None:
    model = save_model(family, tmp_path)
    session = Session(config(tmp_path, max_batch_size=4, max_total_tokens=64), device_path=True)
    assert session.level == "paged+merged"
    assert served[-1].kv_bytes == kept(model, latents=True)
    crowd = [request(str(at), each, tokens=TOKENS, ignore_eos=True) for at, each in enumerate(PROMPTS)]
    heard = session.run(crowd)
    for at, prompt in enumerate(PROMPTS):
        expected = generate(model, prompt, TOKENS, eos_token_id=NEVER)
        assert heard.tokens(str(at)) == expected
        with torch.inference_mode():
            logprobs = log_softmax(model(torch.tensor([[*prompt, *expected]])).logits[0].float(), -1)
        own = [float(logprobs[len(prompt) - 1 + step, token]) for step, token in enumerate(expected)]
        assert [logprob for _, logprob in said(heard, str(at))] == pytest.approx(own, abs=1e-4)
        alone = session.run([request("alone", prompt, tokens=TOKENS, ignore_eos=True)])
        assert alone.tokens("alone") == expected
    session.close()


@pytest.mark.parametrize("off", ["latent_cache", "native_kernels", "merge_linears"])
def test_texts_are_the_same_without(off: str, tmp_path: Path, served: list[Served]) -> None:
    model = save_model("youtu", tmp_path)
    settings: dict[str, Any] = {off: False}
    session = Session(config(tmp_path, max_total_tokens=64, **settings), device_path=True)
    assert served[-1].kv_bytes == kept(model, latents=off != "latent_cache")
    check_text(session, "youtu")
    session.close()


def test_a_prompt_in_pieces_is_read_as_in_one(tmp_path: Path) -> None:
    save_model("youtu", tmp_path)
    cut = config(tmp_path, max_total_tokens=64, prefill_chunk_tokens=7, max_batch_size=4)
    session = Session(cut, device_path=True)
    crowd = [request(str(at), each, tokens=TOKENS, ignore_eos=True) for at, each in enumerate(PROMPTS)]
    heard = session.run(crowd)
    for at, prompt in enumerate(PROMPTS):
        assert heard.tokens(str(at)) == generate(make_model("youtu"), prompt, TOKENS, eos_token_id=NEVER)
    session.close()


def test_heads_are_kept_where_latents_do_not_reproduce(
    tmp_path: Path, served: list[Served], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_model("deepseek_v3", tmp_path)
    expand = HeadProjection.expand

    def wrong(projection: HeadProjection, found: Tensor) -> Tensor:
        return expand(projection, found) * 1.1

    monkeypatch.setattr(HeadProjection, "expand", wrong)
    session = Session(config(tmp_path, max_total_tokens=64), device_path=True)
    assert session.level == "paged+merged"
    assert served[-1].kv_bytes == kept(model, latents=False)
    check_text(session, "deepseek_v3")
    session.close()


def test_bfloat16_is_served_over_latents(tmp_path: Path, served: list[Served]) -> None:
    model = save_model("youtu", tmp_path, dtype=torch.bfloat16)
    of = ModelConfig(model_id=str(tmp_path), dtype="bfloat16")
    session = Session(replace(config(tmp_path, max_total_tokens=64), model=of), device_path=True)
    assert session.level == "paged+merged"
    assert served[-1].kv_bytes == kept(model, latents=True, itemsize=served[-1].kv_dtype.itemsize)
    crowd = [request(str(at), each, tokens=TOKENS, ignore_eos=True) for at, each in enumerate(PROMPTS)]
    heard = session.run(crowd)
    assert all(len(heard.tokens(str(at))) == TOKENS for at in range(len(PROMPTS)))
    session.close()


def test_no_big_weight_is_left_to_torch() -> None:
    """By such a one no row's bits could be said to depend on that row alone."""
    sizes = {"kv_lora_rank": 512, "q_lora_rank": 32, "qk_rope_head_dim": 16, "num_key_value_heads": 4}
    model = toy("youtu", qk_nope_head_dim=256, v_head_dim=256, **sizes)
    assert model.model.layers[0].self_attn.kv_b_proj.weight.numel() > 1_000_000
    options = Options(library=None, ops=torch_ops(), dtype=torch.float32, max_total_tokens=64)
    served = bring_up(model, options)
    assert served.level is Level.PAGED_MERGED
    assert not served.torch_heavy


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_bits_are_the_same_in_any_batch_if_that_is_asked_for(dtype: str, tmp_path: Path) -> None:
    save_model("youtu", tmp_path)
    asked = config(tmp_path, max_batch_size=4, max_total_tokens=64, deterministic=True)
    of = ModelConfig(model_id=str(tmp_path), dtype=dtype)
    session = Session(replace(asked, model=of), device_path=True)
    assert session.info.deterministic
    crowd = [request(str(at), each, tokens=TOKENS, ignore_eos=True) for at, each in enumerate(PROMPTS)]
    heard = session.run(crowd)
    for at, prompt in enumerate(PROMPTS):
        alone = session.run([request("alone", prompt, tokens=TOKENS, ignore_eos=True)])
        assert said(alone, "alone") == said(heard, str(at))
    session.close()
