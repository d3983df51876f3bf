"""What a model's forward finds the positions of a packed step by."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

from inference.models.attending import stood_for
from inference.planning.positions import first_position


class Positions:
    """Gives a model's forward its `position_ids`, and what else it finds positions by.

    RoBERTa and its like count from behind their padding's id; to their own code that id in a text has no
    position, and here it is a token as others are. Bart and its like have no such argument.
    Llama 4's attention scales queries that are far behind in a text by positions that it counts itself. The
    last two ask transformers' cache how many tokens are before the first one, and add 0, 1, 2, ... to that.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._first = first_position(model.config.get_text_config())
        takes = inspect.signature(model.forward).parameters
        tuned = any(getattr(module, "attn_temperature_tuning", False) for module in model.modules())
        stands = stood_for(model)
        self._counts = "past_key_values" in takes and (tuned or ("position_ids" not in takes and not stands))
        self._masks = "attention_mask" in takes and not tuned  # or one is made, as long as all tokens are
        self._unmasked = stands and "past_key_values" in takes

    def of(self, positions: Tensor, spatial: Tensor | None = None) -> dict[str, Any]:
        """Return the arguments for positions (tokens,); `spatial` (axes, 1, tokens): beside images."""
        placed = positions[None] if spatial is None else spatial
        given: dict[str, Any] = {"position_ids": placed + self._first if self._first else placed}
        if self._unmasked:  # it would make one of tokens x tokens, for who doesn't look at it
            given["attention_mask"] = torch.zeros(1, 1, 1, 1, device=positions.device)
        if not self._counts:
            return given
        given["past_key_values"] = _CountedTokens(positions)
        if self._masks:
            given["attention_mask"] = torch.ones_like(positions)[None]
        return given


class _CountedTokens:
    """Stands in for transformers' cache."""

    def __init__(self, positions: Tensor) -> None:
        self._before = positions - torch.arange(len(positions), device=positions.device)

    def get_seq_length(self, _: int = 0) -> Tensor:
        """Return (tokens,): of each how many would be before the first one, were they one text's."""
        return self._before

    def update(self, keys: Tensor, values: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """Return what was given: our attention keeps it."""
        return keys, values
