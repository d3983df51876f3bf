"""Which place each row of a batch has in its own text; decoders count from their cache, padding included."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

_ASKED = "decoder_position_ids"  # of a model: places are told it (T5Gemma)
_PAST = "past_key_values_length"  # of a table of places: how many tokens are before (BART, M2M-100)
_GIVEN = "position_ids"  # of such a table: what the decoder has counted itself


class PlacedDecoder:
    """A model's decoder, told how long each row's text is: for batches of texts of several lengths.

    Whose layers know tokens' distances alone (T5) needs no telling.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self._model = model
        self._is_asked = _ASKED in _takes(model)
        decoder: nn.Module = model.get_decoder()
        self._tables = [module for module in decoder.modules() if _PAST in _takes(module)]

    def step(self, lengths: Sequence[int], tokens: Tensor, **known: Any) -> Tensor:
        """Compute a token (rows, 1) behind `lengths` tokens of each row; return the logits (rows, words)."""
        if self._is_asked:
            known[_ASKED] = torch.tensor(lengths, device=tokens.device)[:, None]
        hooks = [
            table.register_forward_hook(_Rows(lengths).look_up, with_kwargs=True) for table in self._tables
        ]
        try:
            output = self._model(decoder_input_ids=tokens, use_cache=True, **known)
        finally:
            for hook in hooks:
                hook.remove()
        logits: Tensor = output.logits[:, -1].float()
        return logits


class _Rows:
    """Has a table of places look up each row as if it were alone."""

    def __init__(self, lengths: Sequence[int]) -> None:
        self._lengths = lengths

    def look_up(self, table: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], _: Tensor) -> Tensor:
        """Return what the table has for the rows (rows, tokens, hidden)."""
        given = inspect.signature(table.forward).bind(*args, **kwargs).arguments
        return torch.cat([self._of_row(table, given, row) for row in range(len(self._lengths))])

    def _of_row(self, table: nn.Module, given: Mapping[str, Any], row: int) -> Tensor:
        own = {name: self._row(value, row) for name, value in given.items()} | {_PAST: self._lengths[row]}
        if (places := given.get(_GIVEN)) is not None:
            own[_GIVEN] = places + self._lengths[row] - given[_PAST]
        found: Tensor = table.forward(**own)
        return found if found.dim() == 3 else found[None]

    def _row(self, value: Any, row: int) -> Any:
        """Return an argument as it is of one row: of ids or their shape, of embeddings, or of none."""
        if isinstance(value, Tensor):
            return value[row : row + 1]
        return (1, *value[1:]) if isinstance(value, tuple) else value


def _takes(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(module.forward).parameters
