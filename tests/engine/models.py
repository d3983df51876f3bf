"""Small random models of many families, the same ones each time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging

VOCABULARY = 97
EOS = 2
POSITIONS = 256

_COMMON: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": POSITIONS,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": EOS,
    "tie_word_embeddings": False,  # tied and random, a model repeats its input
}
_GPT: dict[str, Any] = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": POSITIONS}

FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "mistral": {"sliding_window": 6},
    "qwen2": {},
    "qwen3": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 5},
    "gemma3_text": {"head_dim": 16, "sliding_window": 5},
    "phi3": {},
    "gpt2": _GPT,
    "gpt_neox": {},
    "gpt_bigcode": _GPT,  # all heads share one pair of key and value, which its configuration doesn't say
    "mixtral": {"num_local_experts": 4},
    "gpt_oss": {"head_dim": 16, "num_local_experts": 4, "sliding_window": 5},
    "deepseek_v3": {
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "n_group": 1,
        "topk_group": 1,
        "moe_intermediate_size": 32,
        "kv_lora_rank": 16,
        "q_lora_rank": 16,
        "qk_rope_head_dim": 8,
        "qk_nope_head_dim": 16,
        "v_head_dim": 16,
        "first_k_dense_replace": 1,
        "num_key_value_heads": 4,
        "n_shared_experts": 1,
    },
    "bloom": {"n_layer": 3, "n_head": 4},
    "gptj": {**_GPT, "rotary_dim": 8},
}


def make_model(family: str) -> PreTrainedModel:
    """Return a random model whose greedy text isn't one token repeated."""
    logging.disable_progress_bar()
    config = AutoConfig.for_model(family, **{**_COMMON, **FAMILIES[family]})
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.eval().float()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
    return model


def save_model(family: str, directory: Path) -> PreTrainedModel:
    """Return a random model after it was saved in `directory`."""
    model = make_model(family)
    model.save_pretrained(directory)
    return model


def generate(model: PreTrainedModel, prompt: tuple[int, ...], tokens: int, **options: Any) -> list[int]:
    """Return what transformers' own greedy `generate` adds to the prompt: the oracle."""
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    full = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, **options)
    return full[0, len(prompt) :].tolist()


def prompts(*lengths: int) -> list[tuple[int, ...]]:
    """Return random prompts, without special tokens, the same ones each time."""
    generator = torch.Generator().manual_seed(1)
    return [
        tuple(torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()) for length in lengths
    ]
