"""Ids that a model takes for others before it embeds them, as Gemma 4 those that stand for images."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

_NAMED = "_token_id"  # how configurations name ids


class _EmbeddedError(Exception):
    """The embedding has been called: what comes behind it isn't needed."""


@torch.inference_mode()
def replaced_ids(model: PreTrainedModel) -> dict[int, int]:
    """Return which of the ids that a configuration names the embedding isn't given, and what it is given."""
    rows = model.get_input_embeddings().weight.shape[0]
    named = [value for name, value in vars(model.config).items() if name.endswith(_NAMED)]
    ids = sorted({each for each in named if isinstance(each, int) and 0 <= each < rows})
    if not ids or model.config.get_text_config() is model.config:
        return {}
    seen: list[Tensor] = []

    def stop(_: nn.Module, arguments: tuple[Any, ...]) -> None:
        seen.append(arguments[0])
        raise _EmbeddedError

    handle = model.get_input_embeddings().register_forward_pre_hook(stop)
    try:
        model(input_ids=torch.tensor([ids], device=model.device), use_cache=False)
    except Exception:  # a model may want images where ids say so; then nothing is known of them
        pass
    finally:
        handle.remove()
    if not seen or seen[0].shape != (1, len(ids)):
        return {}
    pairs = zip(ids, seen[0][0].tolist(), strict=True)
    return {one: other for one, other in pairs if one != other}


def replace_ids(ids: NDArray[np.int64], replaced: dict[int, int]) -> NDArray[np.int64]:
    """Return ids as the embedding is given them."""
    found = ids.copy()
    for one, other in replaced.items():
        found[ids == one] = other
    return found
