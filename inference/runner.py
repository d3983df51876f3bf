"""The forward pass of one step: several sequences packed together, or one after the other."""

from __future__ import annotations

import inspect
from collections.abc import Sequence as Several

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from inference.kernels.reference import Piece, Step
from inference.paged import PagedCache
from inference.state import Chunk


class PagedRunner:
    """Runs all chunks of a step as one row of tokens over the paged cache."""

    def __init__(self, model: PreTrainedModel, cache: PagedCache) -> None:
        self._model = model
        self._cache = cache
        self._head = _Head(model)

    @torch.inference_mode()
    def run(self, chunks: Several[Chunk]) -> Tensor:
        """Return the logits, of shape (rows, vocabulary), in float32."""
        device, dtype = self._model.device, self._model.dtype
        ids = np.concatenate([chunk.sequence.ids[chunk.start : chunk.stop] for chunk in chunks])
        positions = np.concatenate([np.arange(chunk.start, chunk.stop) for chunk in chunks])
        pieces = [Piece(chunk.start, chunk.stop, chunk.sequence.blocks) for chunk in chunks]
        self._cache.step = Step(pieces, device, dtype)
        output = self._model(
            input_ids=torch.from_numpy(ids)[None].to(device),
            position_ids=torch.from_numpy(positions)[None].to(device),
            use_cache=False,
            **self._head.arguments(rows := _rows(chunks, device)),
        )
        return self._head.logits(output.logits, rows)


class SequentialRunner:
    """Runs each chunk alone through transformers' own cache: slow, and right for every model.

    With `cached` false nothing is kept between steps and each token computes the whole sequence
    again, for models whose cache isn't passed as `past_key_values`.
    """

    def __init__(self, model: PreTrainedModel, *, cached: bool) -> None:
        self._model = model
        self._cached = cached
        self._head = _Head(model)

    @torch.inference_mode()
    def run(self, chunks: Several[Chunk]) -> Tensor:
        """Return the logits, of shape (rows, vocabulary), in float32."""
        return torch.cat([self._run(chunk) for chunk in chunks])

    def _run(self, chunk: Chunk) -> Tensor:
        sequence = chunk.sequence
        start = chunk.start if self._cached else 0
        ids = torch.from_numpy(sequence.ids[start : chunk.stop])[None].to(self._model.device)
        cache = {"past_key_values": sequence.cache} if start else {}
        rows = torch.arange(chunk.stop - chunk.logit_rows, chunk.stop, device=ids.device) - start
        output = self._model(input_ids=ids, use_cache=self._cached, **cache, **self._head.arguments(rows))
        if self._cached:
            sequence.cache = output.past_key_values
        return self._head.logits(output.logits, rows)


class _Head:
    """Asks the model for the logits of some positions only, or picks them where it can't."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._selects = "logits_to_keep" in inspect.signature(model.forward).parameters

    def arguments(self, rows: Tensor) -> dict[str, Tensor]:
        return {"logits_to_keep": rows} if self._selects else {}

    def logits(self, logits: Tensor, rows: Tensor) -> Tensor:
        """Return (rows, vocabulary) of the model's (1, positions, vocabulary)."""
        picked = logits[0] if self._selects else logits[0].index_select(0, rows)
        return picked.float()


def _rows(chunks: Several[Chunk], device: torch.device) -> Tensor:
    """Return which tokens of the packed row need logits."""
    rows: list[int] = []
    end = 0
    for chunk in chunks:
        end += chunk.size
        rows.extend(range(end - chunk.logit_rows, end))
    return torch.tensor(rows, dtype=torch.int64, device=device)
