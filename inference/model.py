"""transformers' models: loaded, described, and brought to the fastest level that is exact."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from inference.checkpoint import Checkpoint, Weights, tokenizer_eos
from inference.config import ModelConfig
from inference.errors import ModelUnavailable
from inference.plan import Demand

_DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}


def choose_device(config: ModelConfig) -> torch.device:
    """Return the device to compute on; raise ModelUnavailable if the one asked for isn't there."""
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ModelUnavailable("torch finds no CUDA device, which --device cuda asks for; use --device cpu")
    if config.device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return torch.device(config.device)


def choose_dtype(config: ModelConfig, model: PreTrainedConfig, device: torch.device) -> torch.dtype:
    """Return the dtype to compute in.

    On CPU "auto" is float32 whatever the files hold: widening 16 bits is exact, and torch's matrix
    products in 16 bits are slower there than in float32 from a batch of four on, unless the CPU has
    instructions of its own for them.
    """
    if config.dtype != "auto":
        return _DTYPES[config.dtype]
    if device.type == "cpu":
        return torch.float32
    stored = getattr(model, "dtype", None)
    return stored if stored in (torch.float16, torch.bfloat16) else torch.bfloat16


def read_config(checkpoint: Checkpoint, config: ModelConfig) -> PreTrainedConfig:
    """Return transformers' configuration of the model; raise ModelUnavailable if it has none."""
    try:
        found: PreTrainedConfig = AutoConfig.from_pretrained(
            checkpoint.path, trust_remote_code=config.trust_remote_code
        )
    except (ValueError, KeyError, OSError, ImportError) as error:
        raise _unavailable(config, error) from error
    return found


def load_model(
    checkpoint: Checkpoint,
    config: ModelConfig,
    described: PreTrainedConfig,
    dtype: torch.dtype,
    device: torch.device,
    progress: Callable[[str], None],
) -> PreTrainedModel:
    """Return the model with its weights on `device`, attention still transformers' own ("eager")."""
    started = time.monotonic()
    if not sys.stderr.isatty():  # a bar is for a person; in a log it is noise
        transformers_logging.disable_progress_bar()
    try:
        model: PreTrainedModel = AutoModelForCausalLM.from_pretrained(
            checkpoint.path,
            config=described,
            dtype=dtype,
            attn_implementation="eager",
            trust_remote_code=config.trust_remote_code,
            use_safetensors=None if config.trust_remote_code else True,
        )
    except (ValueError, KeyError, OSError, ImportError, RuntimeError) as error:
        raise _unavailable(config, error) from error
    model.to(device).eval().requires_grad_(False)
    progress(f"Loaded {type(model).__name__} as {dtype} in {time.monotonic() - started:.1f} s")
    return model


def describe_demand(described: PreTrainedConfig, weights: Weights, dtype: torch.dtype) -> Demand:
    """Return what the model will need, from its configuration and its files' headers."""
    text = described.get_text_config()
    return Demand(
        weights_bytes=weights.size(dtype.itemsize),
        parameters=weights.floats + weights.other_bytes,
        kv_bytes=_kv_elements(text) * dtype.itemsize,
        max_positions=_first(text, "max_position_embeddings", "n_positions", "max_seq_len", "seq_length"),
    )


def eos_token_ids(model: PreTrainedModel, checkpoint: Checkpoint) -> tuple[int, ...]:
    """Return the tokens that end a sequence, of the generation config, else the model, else the tokenizer."""
    text = model.config.get_text_config()
    for source in (model.generation_config, text):
        ids = getattr(source, "eos_token_id", None)
        if ids is not None:
            return tuple(ids) if isinstance(ids, list | tuple) else (int(ids),)
    return tokenizer_eos(checkpoint.path)


def vocabulary_size(model: PreTrainedModel) -> int:
    """Return how many token ids the model takes: it can be padded, so more than its tokenizer has."""
    rows: int = model.get_input_embeddings().weight.shape[0]
    return rows


def _kv_elements(text: PreTrainedConfig) -> int:
    """Return the numbers that one token puts into the cache of all layers together."""
    heads: int = _first(text, "num_attention_heads", "n_head", "num_heads") or 1
    hidden: int = _first(text, "hidden_size", "n_embd", "d_model") or heads
    layers: int = _first(text, "num_hidden_layers", "n_layer", "num_layers") or 1
    if _first(text, "kv_lora_rank"):  # MLA, run as attention with full heads
        return layers * heads * (text.qk_nope_head_dim + text.qk_rope_head_dim + text.v_head_dim)
    kv_heads: int = _first(text, "num_key_value_heads", "num_kv_heads") or heads
    head_dim: int = _first(text, "head_dim") or hidden // heads
    return layers * kv_heads * 2 * head_dim


def _first(config: PreTrainedConfig, *names: str) -> Any:
    """Return the first of the members that is there and not None."""
    return next((value for name in names if (value := getattr(config, name, None)) is not None), None)


def _unavailable(config: ModelConfig, error: Exception) -> ModelUnavailable:
    first_line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return ModelUnavailable(f"`{config.name}` can't be loaded: {first_line}{_hint(error)}")


def _hint(error: Exception) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return "; it brings its own code: read it, then start with --trust-remote-code to run it"
    if "does not recognize this architecture" in text or "Unrecognized" in text:
        return "; this architecture needs another version of transformers, or is no text generation model"
    return ""
