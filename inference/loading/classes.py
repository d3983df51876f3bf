"""Which of transformers' classes a model is of, and what it takes."""

from __future__ import annotations

import inspect
from itertools import chain
from typing import Any

import torch
from transformers import (
    MODEL_FOR_CAUSAL_LM_MAPPING,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING,
    PreTrainedConfig,
    PreTrainedModel,
)

from inference.files.checkpoint import Weights
from inference.planning.precision import DTYPES

_REST = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def model_class(described: PreTrainedConfig) -> type[PreTrainedModel] | None:
    """Return transformers' own class for a configuration; None if the model brings its code.

    Of a model that sees, that is the class for images and text, unless it can't do without images. Of one
    with an encoder it is the one that its files name: some families have a class of the decoder alone, too.
    """
    whole = described.is_encoder_decoder
    other = MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING if whole else MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING
    mappings = (MODEL_FOR_CAUSAL_LM_MAPPING, other)
    found = [classes_of_text(mapping[type(described)]) for mapping in mappings if type(described) in mapping]
    several = list(chain(*(found if whole else found[:1])))
    named = [each for each in several if each.__name__ in (described.architectures or ())]
    return next(iter(named + several), None)


def classes_of_text(found: Any) -> list[type[PreTrainedModel]]:
    """Return those of a family's classes that compute the next token of text alone."""
    several = found if isinstance(found, tuple | list) else (found,)
    return [each for each in several if _takes_text(each)]


def _takes_text(model_class: type[PreTrainedModel]) -> bool:
    """Return whether a class computes the next token of text alone, as far as its signature says."""
    takes = inspect.signature(model_class.forward).parameters
    others = [each for each in list(takes.values())[1:] if each.name != "input_ids"]
    required = [each for each in others if each.default is each.empty and each.kind not in _REST]
    drafts = "self_conditioning_logits" in takes  # of a whole block, which diffusion refines
    return "input_ids" in takes and not required and not drafts


def own_config(model_class: type[PreTrainedModel], described: PreTrainedConfig) -> PreTrainedConfig:
    """Return the configuration that a class takes: of a model of several parts it may be that for text."""
    part = described.sub_configs.get("text_config")
    return described.get_text_config() if part and model_class.config_class is part else described


def has_own_code(described: PreTrainedConfig) -> bool:
    """Return whether a model is computed by code that it brings."""
    return model_class(described) is None


def numberless(own: type[PreTrainedModel], described: PreTrainedConfig) -> PreTrainedModel:
    """Return a model of a class without any numbers."""
    with torch.device("meta"):
        return own._from_config(own_config(own, described))


def stored_dtypes(weights: Weights) -> dict[str, torch.dtype]:
    """Return what the files' tensors are in, by name."""
    return {name: DTYPES[dtype] for name, dtype in weights.dtypes.items()}
