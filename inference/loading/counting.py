"""How many numbers a model holds, and in what, before any of them is read."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.pytorch_utils import Conv1D

from inference.files.checkpoint import Weights
from inference.loading.classes import model_class, numberless, stored_dtypes
from inference.loading.keeping import KeptWeights, rounded_linears, stored_linears
from inference.models.quantised_experts import first_sizes
from inference.models.weights import NARROW, expert_weights, kept_kinds, make_plain

_PANEL = 32  # outputs that are packed side by side, as in native.h
_CHOSEN = ("num_experts_per_tok", "moe_k", "moe_topk", "top_k_experts")  # experts that a token is given to


def kept_weights(
    described: PreTrainedConfig,
    weights: Weights,
    rounding: str | None,
    bits: Collection[int],
    *,
    experts: bool,
) -> KeptWeights:
    """Return which linears compute with few bits: as the files have them, in these, or by `rounding`.

    `experts`: mixtures' experts may, too.
    """
    own = model_class(described)
    stored = weights.stored
    if own is None or described.is_encoder_decoder:
        return KeptWeights()
    try:
        model = numberless(own, described)
        if rounding is not None:
            return rounded_linears(model, rounding, experts=experts)
        return KeptWeights() if stored is None else stored_linears(model, stored, bits, experts=experts)
    except Exception:  # it will fail again as the model is loaded, and be told then
        return KeptWeights()


def held_weights(described: PreTrainedConfig, weights: Weights, device: torch.device) -> Weights:
    """Return how many numbers the model will hold, and how many of them in what is kept as it is stored.

    Files may have them in another form: experts as matrices, of which the model makes one tensor before
    it is packed. Of files in 16 bits for the most part, matrices in 32 count as all else, as they are kept
    so, and so do experts in 32 bits, always.
    """
    own = model_class(described)
    if own is None:
        return weights
    try:
        model = numberless(own, described)
        make_plain(model)
        kinds = kept_kinds(model, stored_dtypes(weights))
    except Exception:  # it will fail again as the model is loaded, and be told then
        return weights
    weights = replace(weights, idle=_idle(model))
    if device.type != "cpu":
        return weights
    sizes = {id(each): each.numel() for each in model.parameters()}  # each once, where several are tied
    of_experts = {id(getattr(*each)) for each in kinds if expert_weights(each[0])}
    narrow = {id(getattr(*each)) for each, kind in kinds.items() if kind in NARROW}
    linears = {id(getattr(*each)) for each in kinds} - of_experts
    # A weight that is computed of others, as by weight_norm, is none of the parameters
    experts = sum(sizes.get(each, 0) for each in of_experts & narrow)
    counted = linears & narrow if weights.narrow else linears
    turned = {id(each.weight) for each in model.modules() if type(each) is Conv1D}
    mixtures = [expert_weights(each).values() for each in model.modules()]
    tables = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    head = model.get_output_embeddings()
    return replace(
        weights,
        passing=_passing(model),
        floats=sum(sizes.values()),
        matrices=sum(sizes.get(each, 0) for each in counted | turned) + experts,
        turned=sum(sizes.get(each, 0) for each in turned),
        experts=experts,
        mixture=max(sum(each.numel() for each in layer) for layer in mixtures),
        kept=sum(sizes.get(each, 0) for each in counted & (tables | _beside_text(model))),
        kept_heads=sum(sizes.get(each, 0) for each in tables & {id(getattr(head, "weight", None))}),
    )


def has_experts(described: PreTrainedConfig) -> bool:
    """Return whether a model of transformers' own classes is a mixture of experts."""
    own = model_class(described)
    try:
        return own is not None and any(map(expert_weights, numberless(own, described).modules()))
    except Exception:  # it will fail again as the model is loaded, and be told then
        return False


def _beside_text(model: PreTrainedModel) -> set[int]:
    """Return the ids of the weights by which a model sees or hears, which stay as they are at level fused."""
    if model.config.get_text_config() is model.config or model.config.is_encoder_decoder:
        return set()
    parts = (model.get_decoder(), model.get_output_embeddings())
    of_text = {id(each) for part in parts if part is not None for each in part.parameters()}
    return {id(each) for each in model.parameters()} - of_text


def _idle(model: PreTrainedModel) -> int:
    """Return how many numbers a token isn't multiplied with: those of experts that it isn't given to."""
    chosen = _chosen(model)
    if chosen is None:
        return 0
    experts = [each for module in model.modules() for each in expert_weights(module).values()]
    return sum(each.numel() * max(len(each) - chosen, 0) // len(each) for each in experts)


def _passing(model: PreTrainedModel) -> int:
    """Return how many numbers a token's experts read and make at once; a step's layers share the memory."""
    mixtures = [module for module in model.modules() if expert_weights(module)]
    return (_chosen(model) or 0) * max(map(_passing_one, mixtures), default=0)


def _passing_one(experts: Any) -> int:
    """Return the same of one expert: its input, what is between its linears, and its output."""
    _, outputs, hidden = first_sizes(experts)
    gates = 1 + bool(experts.has_gate)
    inner = outputs // gates
    apart = outputs if gates > 1 and inner % _PANEL else 0  # gates and ups that share a panel
    return 2 * hidden + inner + apart


def _chosen(model: PreTrainedModel) -> int | None:
    """Return how many experts a token is given to, None if the configuration doesn't say."""
    text = model.config.get_text_config()
    return next((each for name in _CHOSEN if type(each := getattr(text, name, None)) is int), None)
