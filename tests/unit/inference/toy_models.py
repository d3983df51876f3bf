"""Tiny random models whose every parameter matters."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedModel

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 97,
    "max_position_embeddings": 256,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_GPT: dict[str, Any] = {"n_embd": 64, "n_layer": 3, "n_head": 4, "n_positions": 256}
FAMILIES: dict[str, dict[str, Any]] = {
    "llama": {},
    "llama with tied weights": {"tie_word_embeddings": True},
    "llama with biases": {"attention_bias": True, "mlp_bias": True},
    "mistral": {"sliding_window": 6, "head_dim": 16},
    "qwen3": {"head_dim": 16},
    "gemma2": {"head_dim": 16, "sliding_window": 5},
    "gemma3_text": {"head_dim": 16, "sliding_window": 5},
    "phi3": {},
    "olmo2": {},
    "granite": {
        "residual_multiplier": 0.3,
        "embedding_multiplier": 3.0,
        "logits_scaling": 2.0,
        "attention_multiplier": 0.4,
    },
    "smollm3": {},
    "glm": {"head_dim": 16},
    "glm4": {"head_dim": 16},
    "exaone4": {"sliding_window": 5, "sliding_window_pattern": 4, "num_hidden_layers": 4},  # one sees all
    "gpt2": _GPT,
    "gpt_neox": {},
    "cohere": {},
    "mixtral": {"num_local_experts": 4},
    "llama4_text": {
        "attention_chunk_size": 20,
        "floor_scale": 8,
        "no_rope_layers": [1, 0, 1],
        "num_local_experts": 2,
        "intermediate_size_mlp": 96,
        "head_dim": 16,
    },
    "bloom": {"n_layer": 3, "n_head": 4},
    "falcon": {"new_decoder_architecture": True, "num_kv_heads": 2},
    "falcon with one head of keys": {"parallel_attn": True, "multi_query": True},
    "mpt": {"d_model": 64, "n_heads": 4, "n_layers": 3, "max_seq_len": 256},
    "starcoder2": {"sliding_window": 5},
    "gptj": {**_GPT, "rotary_dim": 8},
    "codegen": {**_GPT, "rotary_dim": 8},
    "cohere2": {
        "sliding_window": 5,
        "head_dim": 16,
        "layer_types": ["sliding_attention", "full_attention"] * 2,
        "num_hidden_layers": 4,
    },
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
    "gpt_bigcode": {**_GPT, "multi_query": False},
    "persimmon": {},
    "stablelm": {"qk_layernorm": True, "use_parallel_residual": True},
    "nemotron": {},
    "olmo": {},
    "cohere2_moe": {"head_dim": 16},
    "xglm": {"ffn_dim": 96},
    "roformer": {"is_decoder": True},
}


def toy(name: str, **changes: Any) -> PreTrainedModel:
    """Return a model of a family; its name may say more after a space."""
    family = name.split()[0]
    config = AutoConfig.for_model(family, **{**SIZES, **FAMILIES.get(name, {}), **changes})
    torch.manual_seed(0)
    model: PreTrainedModel = AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    model.eval().float().requires_grad_(False)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.15)
        else:
            parameter += torch.randn_like(parameter) * 0.1
    return model
