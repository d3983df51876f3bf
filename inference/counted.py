"""Positions of a packed step for code that takes none: it asks transformers' cache how many tokens it has."""

from __future__ import annotations

import inspect
from typing import Any

import torch
from torch import Tensor, nn


class Positions:
    """Gives a model's forward what it finds a packed step's positions by, beside its `position_ids`.

    Bart and its like have no such argument. Llama 4's attention scales queries that are far behind in a text
    by positions that it counts itself. Both add the number of tokens before the first one to 0, 1, 2, ...
    """

    def __init__(self, model: nn.Module) -> None:
        takes = inspect.signature(model.forward).parameters
        tuned = any(getattr(module, "attn_temperature_tuning", False) for module in model.modules())
        self._counts = "past_key_values" in takes and (tuned or "position_ids" not in takes)
        self._masks = (
            "attention_mask" in takes and not tuned
        )  # or it makes one, as long as all tokens there are

    def of(self, positions: Tensor) -> dict[str, Any]:
        """Return the arguments for positions (tokens,); most models need none."""
        if not self._counts:
            return {}
        given: dict[str, Any] = {"past_key_values": _CountedTokens(positions)}
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
