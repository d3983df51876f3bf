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
_GIVEN = "position_ids"  # of such a table, where it takes them: the places themselves


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

    def look_up(
        self, table: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], found: Tensor
    ) -> Tensor:
        """Return what the table has for the rows (rows, tokens, hidden), of which it `found` some others."""
        given = inspect.signature(table.forward).bind(*args, **kwargs).arguments
        distinct = set(self._lengths)
        if distinct == {given[_PAST]}:  # none is padded
            return found
        if _GIVEN in _takes(table):
            places = torch.tensor(self._lengths, device=found.device)
            at_once: Tensor = table.forward(**{**given, _GIVEN: places})
            return at_once.reshape(len(places), *found.shape[-2:])
        rows = found.new_empty(len(self._lengths), *found.shape[-2:])
        for length in distinct:
            same = [row for row, other in enumerate(self._lengths) if other == length]
            rows[same] = self._of_length(table, given, length, same)
        return rows

    def _of_length(self, table: nn.Module, given: Mapping[str, Any], length: int, rows: list[int]) -> Tensor:
        own = {name: self._of_rows(value, rows) for name, value in given.items()} | {_PAST: length}
        found: Tensor = table.forward(**own)
        return found

    def _of_rows(self, value: Any, rows: list[int]) -> Any:
        """Return an argument as it is of some rows: of ids or their shape, of embeddings, or of none."""
        if isinstance(value, Tensor):
            return value[rows]
        return (len(rows), *value[1:]) if isinstance(value, tuple) else value


def _takes(module: nn.Module) -> Mapping[str, inspect.Parameter]:
    return inspect.signature(module.forward).parameters
