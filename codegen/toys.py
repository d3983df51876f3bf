"""Toy models of any family that transformers knows: random, small, and of the family's own shape.

A family's default configuration is shrunk by rules on the names of its members, and some families
need members of their own (`codegen/toy_rules.py`). Weights are drawn so wide that logits have clear
maxima: the most likely token doesn't depend on how sums are rounded.
"""

from __future__ import annotations

import re
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
from transformers import (
    CONFIG_MAPPING,
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    AutoConfig,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    AutoModelForSeq2SeqLM,
    GenerationConfig,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.utils import logging

from codegen.toy_rules import EOS, KEPT, LAYER_NAMES, LAYERS, MISSED, OWN, POSITIONS, RULES, VOCABULARY
from inference.encoded.texts import has_encoder

MOST_PARAMETERS = 20_000_000  # a toy that is bigger is none: some member was not shrunk

ENCODER = "+encoder"  # behind the name of a family whose decoders are models of their own, too

_SPREAD = 0.15  # standard deviation of matrices: greedy text neither repeats one token nor hits ties


def toy_config(family: str) -> PreTrainedConfig:
    """Return the family's configuration made small; raises whatever its own checks raise."""
    name, encoder, _ = family.partition(ENCODER)
    default = AutoConfig.for_model(name)
    encodes = bool(encoder) or _is_whole(default)
    values = _shrunk(default, decoder=not encodes)
    if encodes:
        values["architectures"] = [MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING[type(default)].__name__]
        values |= {"decoder_start_token_id": 1, "forced_eos_token_id": None}
    for name, value in OWN.get(family, {}).items():
        nested = isinstance(value, dict) and isinstance(getattr(default, name, None), PreTrainedConfig)
        values[name] = {**values.get(name, {}), **value} if nested else value
    values["tie_word_embeddings"] = False  # tied and random, a model repeats its input
    return AutoConfig.for_model(family.removesuffix(ENCODER), **values)


def toy_model(family: str, seed: int = 0) -> PreTrainedModel:
    """Return a random model whose greedy text isn't one token repeated, the same one for each seed."""
    logging.disable_progress_bar()
    config = toy_config(family)
    maker = _maker(config, whole=family.endswith(ENCODER))
    with torch.device("meta"):
        empty = maker.from_config(config, attn_implementation="eager")
    count = sum(parameter.numel() for parameter in empty.parameters())
    if count > MOST_PARAMETERS:
        raise ValueError(f"{count:,} parameters are too many for a toy")
    torch.manual_seed(seed)
    model: PreTrainedModel = maker.from_config(config, attn_implementation="eager")
    model.eval().float()
    for parameter in model.parameters():
        if parameter.dim() > 1 and parameter.requires_grad:  # tables of sines aren't stored
            torch.nn.init.normal_(parameter, std=_SPREAD)
    # Without what some families force on a text, as a last token
    model.generation_config = GenerationConfig(
        bos_token_id=1, eos_token_id=EOS, pad_token_id=0, decoder_start_token_id=1
    )
    return model


def save_toy(
    family: str, directory: Path, seed: int = 0, dtype: torch.dtype = torch.float32
) -> PreTrainedModel:
    """Return a toy in float32 after it was saved in `directory`, of numbers that `dtype` has."""
    model = toy_model(family, seed)
    for tensor in model.state_dict().values():
        if tensor.is_floating_point():
            tensor.copy_(tensor.to(dtype))
    stored = model if dtype == torch.float32 else deepcopy(model).to(dtype)
    stored.save_pretrained(directory)
    toy_config(family).save_pretrained(directory)  # the whole one, where the model is but its text part
    return model


def generate(model: PreTrainedModel, prompt: tuple[int, ...], tokens: int, **options: Any) -> list[int]:
    """Return what transformers' own greedy `generate` adds to the prompt: the oracle."""
    ids = torch.tensor([prompt])
    mask = torch.ones_like(ids)
    full = model.generate(ids, attention_mask=mask, max_new_tokens=tokens, do_sample=False, **options)
    return full[0, 1 if has_encoder(model) else len(prompt) :].tolist()


def generate_whole(model: PreTrainedModel, prompt: tuple[int, ...], tokens: int) -> list[int]:
    """Return the same by the model's `forward` alone, each token from its whole text."""
    text: list[int] = []
    with torch.inference_mode():
        while len(text) < tokens and EOS not in text[-1:]:
            given = {"input_ids": torch.tensor([[*prompt, *text]])}
            if has_encoder(model):
                start = model.generation_config.decoder_start_token_id
                given = {
                    "input_ids": torch.tensor([prompt]),
                    "decoder_input_ids": torch.tensor([[start, *text]]),
                }
            logits = model(**given, use_cache=False).logits
            text.append(int(logits[0, -1].argmax()))
    return text


def prompts(*lengths: int) -> list[tuple[int, ...]]:
    """Return random prompts, without special tokens, the same ones each time."""
    generator = torch.Generator().manual_seed(1)
    return [
        tuple(torch.randint(3, VOCABULARY, (length,), generator=generator).tolist()) for length in lengths
    ]


def reads_text(family: str) -> bool:
    """Return whether a family's encoder is one of prompts: others' are for sounds, before a decoder alone."""
    return bool(CONFIG_MAPPING[family]().is_encoder_decoder)


def _is_whole(config: PreTrainedConfig) -> bool:
    """Return whether all models of a configuration's family have an encoder."""
    others = (MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING)
    return not any(type(config) in each for each in others)


def _maker(config: PreTrainedConfig, *, whole: bool) -> Any:
    """Return what makes models of a configuration; `whole`: with their encoder."""
    if whole or _is_whole(config):
        return AutoModelForSeq2SeqLM
    text_alone = type(config) in MODEL_FOR_CAUSAL_LM_MAPPING
    return AutoModelForCausalLM if text_alone else AutoModelForImageTextToText


def _shrunk(config: PreTrainedConfig, *, decoder: bool = True) -> dict[str, Any]:
    """Return the members of a configuration that change; `decoder`: of models that are one alone."""
    values: dict[str, Any] = {}
    layers = _layers(config)
    for name, value in vars(config).items():
        if value is None and name in MISSED:
            values[name] = MISSED[name]
        if name.startswith("_") or isinstance(value, bool) or value is None:
            continue
        if isinstance(value, PreTrainedConfig):
            values[name] = {"model_type": value.model_type, **_shrunk(value, decoder=decoder)}
        elif isinstance(value, int):
            values[name] = _shrunk_number(name, value)
        elif isinstance(value, list | tuple):
            values[name] = _shrunk_list(name, list(value), layers)
        elif isinstance(value, dict) and name == "rope_parameters":
            values[name] = _shrunk_rope(value)
    if vars(config).get("kv_lora_rank"):
        values["num_key_value_heads"] = values.get("num_attention_heads", 4)  # MLA gives each head its own
        values["head_dim"] = values.get("qk_rope_head_dim", 8)
    if decoder and getattr(config, "is_decoder", None) is False:
        values["is_decoder"] = True
    return {name: value for name, value in values.items() if value != vars(config).get(name)}


def _layers(config: PreTrainedConfig) -> int:
    names = ("num_hidden_layers", "n_layer", "num_layers", "n_layers", "num_blocks")
    return next((int(getattr(config, name)) for name in names if getattr(config, name, None)), 0)


def _shrunk_number(name: str, value: int) -> int:
    if KEPT.fullmatch(name):
        return value
    for pattern, small in RULES:
        if re.fullmatch(pattern, name):
            return small if value > small or pattern == LAYER_NAMES else value
    if name.endswith(("_id", "_index")):
        return min(value, 3)
    return value if value <= 128 else 32


def _shrunk_list(name: str, values: list[Any], layers: int) -> list[Any]:
    """Return a list for fewer layers in which each kind of layer comes, or smaller numbers."""
    if layers and len(values) == layers and all(isinstance(value, str | int | float) for value in values):
        kinds = list(dict.fromkeys(values))
        return [_item(name, kinds[at % len(kinds)]) for at in range(LAYERS)]
    if name == "eos_token_id":
        return [EOS]
    return values


def _item(name: str, value: Any) -> Any:
    return _shrunk_number(name, value) if isinstance(value, int) and not isinstance(value, bool) else value


def _shrunk_rope(rope: dict[str, Any]) -> dict[str, Any]:
    if all(isinstance(value, dict) for value in rope.values()) and rope:
        return {name: _shrunk_rope(value) for name, value in rope.items()}
    changes: dict[str, Any] = {}
    if rope.get("mrope_section"):
        changes["mrope_section"] = [4, 2, 2]  # of half a head
    if rope.get("original_max_position_embeddings"):
        changes["original_max_position_embeddings"] = POSITIONS // 4
    return {**rope, **changes}
