"""Small random models of many families, the same ones each time."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import PreTrainedModel

from codegen.toy_rules import EOS, POSITIONS, VOCABULARY
from codegen.toys import generate, prompts, save_toy, toy_model

__all__ = ["EOS", "FAMILIES", "POSITIONS", "VOCABULARY", "generate", "make_model", "prompts", "save_model"]

# Of each kind of architecture the ones that are used most, and those that are served at the lower levels
FAMILIES = (
    "llama mistral ministral3 qwen2 qwen3 gemma gemma2 gemma3_text phi phi3 olmo olmo2 olmo3 granite "
    "smollm3 stablelm starcoder2 cohere cohere2 glm glm4 seed_oss ernie4_5 exaone4 arcee apertus nemotron "
    "helium bitnet hunyuan_v1_dense persimmon gpt2 gpt_neox gpt_bigcode opt mixtral qwen2_moe qwen3_moe "
    "olmoe gpt_oss dots1 glm4_moe granitemoe deepseek_v3 minicpm3 bloom gptj falcon mpt gpt_neo xglm "
    "qwen3_next qwen3_5_text olmo_hybrid lfm2 mamba mamba2 jamba granitemoehybrid nemotron_h falcon_h1 "
    "llama4_text bart deepseek_v32 "
    "mistral3 qwen2_5_vl qwen3_vl smolvlm "  # these see, and are given text alone
    "t5 umt5 longt5 t5gemma mbart+encoder"  # these have an encoder
).split()


def make_model(family: str, seed: int = 0) -> PreTrainedModel:
    """Return a random model whose greedy text isn't one token repeated."""
    return toy_model(family, seed)


def save_model(
    family: str, directory: Path, seed: int = 0, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Return a random model in float32 after it was saved in `directory`, of numbers that `dtype` has."""
    return save_toy(family, directory, seed, dtype)
