"""Which weights of a quantised checkpoint stay in its 4 bits on a CPU, and how a model is given them."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from inference.models.bits4 import keep_bits4
from inference.models.weights import make_plain
from inference.quantised.stored import Kept, Stored

LOG = logging.getLogger(__name__)


def kept_linears(model: PreTrainedModel, stored: Stored) -> dict[str, str]:
    """Return where in a model the weights are that can stay in 4 bits, by their names in the files.

    Those are plain linears' that the loader takes one by one. A head isn't among them, which may be an
    embedding, too.
    """
    make_plain(model)
    transforms = get_model_conversion_mapping(model)
    renamings = [each for each in transforms if isinstance(each, WeightRenaming)]
    converters = [each for each in transforms if isinstance(each, WeightConverter)]
    head = model.get_output_embeddings()
    places = {
        f"{path}.weight": path
        for path, module in model.named_modules()
        if type(module) is nn.Linear and module is not head
    }
    own, found = model.state_dict(), {}
    for name, each in stored.weights.items():
        renamed, source = rename_source_key(name, renamings, converters, model.base_model_prefix, own)
        if renamed not in own and name in own:
            renamed, source = name, None
        if each.bits4 is not None and source is None and renamed in places:
            found[name] = places[renamed]
    return found


def keep(model: PreTrainedModel, kept: Mapping[str, str], tensors: Mapping[str, Any]) -> None:
    """Have a loaded model's linears compute with the weights in 4 bits that `tensors` have by their names."""
    for name, path in kept.items():
        weight = tensors[name]
        assert isinstance(weight, Kept), "another form was loaded"
        module = model.get_submodule(path)
        with torch.inference_mode():
            keep_bits4(module, weight.bits4())
