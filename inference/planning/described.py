"""What a model needs, as its configuration and its files' headers say before it is loaded."""

from __future__ import annotations

import math
from typing import Any

import torch
from transformers import PreTrainedConfig

from inference.files.checkpoint import Weights
from inference.planning.demand import TOKEN_BYTES, Demand
from inference.planning.positions import Positions, positions_of

STATE_TYPES = {"linear_attention", "conv", "hybrid"}  # of layers, as configurations call them
STATELESS_TYPES = {"moe", "mlp", "dummy"}  # of layers without attention
KEYLESS_TYPES = {"linear_attention", "conv", *STATELESS_TYPES}  # of those that keep no keys and values
_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_target_positions")
_FLOAT_BYTES = 4
_SCORES = 3  # tensors that attention makes of a prompt's scores: they, what is added, and their shares


def describe_demand(
    described: PreTrainedConfig,
    weights: Weights,
    dtype: torch.dtype,
    linears: torch.dtype,
    kv_dtype: torch.dtype,
    *,
    latents: bool = True,
) -> Demand:
    """Return what the model will need, from its configuration and its files' headers.

    `dtype` is what it computes in, `linears` and `kv_dtype` what its linears and its cache are kept in;
    `latents`: its cache keeps those of latent attention, and no head's keys and values.
    """
    text = described.get_text_config(decoder=described.is_encoder_decoder)
    positions, part = positions_of(text, _first(text, *_POSITIONS)), Positions(None, None)
    if described.is_encoder_decoder:  # which has as many for prompts as its decoder for texts
        positions, part = positions.of_both, positions
    return Demand(
        weights_bytes=weights.size(dtype.itemsize, linears.itemsize),
        parameters=_multiplied(text, weights),
        kv_bytes=max(_kv_elements(text, latents) * kv_dtype.itemsize, TOKEN_BYTES),
        max_positions=positions.usual,
        most_positions=positions.most,
        part_positions=part.usual,
        most_part=part.most,
        positions_note=positions.note,
        weights_form=str(linears).removeprefix("torch."),
        step_token_bytes=weights.passing * _FLOAT_BYTES,
        whole=bool(described.is_encoder_decoder),
        pair_bytes=_SCORES * _FLOAT_BYTES * (_first(text, "num_attention_heads", "n_head", "num_heads") or 1),
    )


def head_shape(described: PreTrainedConfig) -> tuple[int, int]:
    """Return the words and the width of the model's head, 0 for what its configuration doesn't say."""
    text = described.get_text_config()
    return _first(text, "vocab_size") or 0, _first(text, "hidden_size", "n_embd", "d_model") or 0


def _multiplied(text: PreTrainedConfig, weights: Weights) -> int:
    """Return how many parameters a token of a prompt is multiplied with.

    Those are all but embedding, head, and the experts that it isn't given to.
    """
    total = weights.floats - weights.idle + weights.other_bytes
    table = math.prod(head_shape(text))
    tables = table if getattr(text, "tie_word_embeddings", True) else 2 * table
    return max(total - tables, total // 8)


def _kv_elements(text: PreTrainedConfig, latents: bool = True) -> int:
    """Return the numbers that one token puts into the cache of all layers together, as far as can be said.

    What the loaded model is seen to need replaces it.
    """
    heads: int = _first(text, "num_attention_heads", "n_head", "num_heads") or 1
    hidden: int = _first(text, "hidden_size", "n_embd", "d_model") or heads
    layers: int = _first(text, "num_hidden_layers", "n_layer", "num_layers") or 1
    if types := _first(text, "layer_types"):
        layers = sum(each not in KEYLESS_TYPES for each in types)
    if _first(text, "kv_lora_rank"):
        indexer = _first(text, "index_head_dim")  # the model's own code attends, and keeps latents
        if latents or indexer:
            return layers * (text.kv_lora_rank + text.qk_rope_head_dim + (indexer or 0))
        return layers * heads * (text.qk_nope_head_dim + text.qk_rope_head_dim + text.v_head_dim)
    head_dim: int = _first(text, "head_dim", "d_kv") or hidden // heads
    return layers * _kv_heads(text, heads) * 2 * head_dim


def _kv_heads(text: PreTrainedConfig, heads: int) -> int:
    """Return how many heads have keys and values of their own, of so many that ask for them."""
    if _first(text, "multi_query") and not _first(text, "new_decoder_architecture"):
        return 1  # Falcon's configuration says as many as there are heads
    found: int = _first(text, "num_key_value_heads", "num_kv_heads") or heads
    return found


def _first(config: PreTrainedConfig, *names: str) -> Any:
    """Return the first of the members that is there and not None."""
    return next((value for name in names if (value := _member(config, name)) is not None), None)


def _member(config: PreTrainedConfig, name: str) -> Any:
    """Return a member; None if it isn't there, or differs from layer to layer."""
    try:
        return getattr(config, name, None)
    except RuntimeError:  # as transformers says that it has several values
        return None
