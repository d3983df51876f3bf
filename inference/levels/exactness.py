"""Whether a row has the same bits whatever is computed beside it."""

from __future__ import annotations

from collections.abc import Collection

import torch
from torch import nn
from transformers import PreTrainedModel

from inference.levels.proof import Verdict
from inference.models.linears import NativeLinear
from inference.models.weights import NarrowEmbedding

_HEAVY = 1_000_000  # numbers of a parameter that torch computes with: from here on its threads pay


def same_bits(one: Verdict, other: Verdict) -> bool:
    """Return whether two ways to compute a proof gave the same bits."""
    if one.logits is None or other.logits is None:
        return False
    return torch.equal(one.logits, other.logits)


def is_heavy(model: PreTrainedModel, idle: Collection[nn.Module]) -> bool:
    """Return whether torch itself multiplies with big parameters; what sees or hears is `idle`.

    Rows are only taken out of an embedding, and some models have one for each layer (Gemma 3n, Gemma 4).
    """
    tables = {id(model.get_input_embeddings().weight)}
    return any(
        parameter.dim() > 1 and parameter.numel() > _HEAVY and id(parameter) not in tables
        for module in model.modules()
        if not isinstance(module, NativeLinear | NarrowEmbedding | nn.Embedding) and module not in idle
        for parameter in module.parameters(recurse=False)
    )
