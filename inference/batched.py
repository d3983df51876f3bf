"""Steps through a model's own attention, as transformers' own batches are: the level `batched`.

For models that don't call transformers' attention interface, or compute what a query sees themselves. Their
code is given a cache of transformers' kind, whose layers keep each sequence's part in blocks: single tokens
of many sequences are one batch, with what is before them padded on the left, and each longer piece of a
prompt is computed alone. So prompts are computed in pieces, and known blocks are found again.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Several
from contextlib import ExitStack
from dataclasses import dataclass
from math import prod
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import Cache, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from inference.blocks import PAGE
from inference.isolation import working_for
from inference.lora import Adapting
from inference.runner import Head
from inference.state import Chunk, Pieces, Sequence
from inference.state_layers import cache_parameter

_KEYS, _VALUES, _INDEXER = "keys", "values", "indexer keys"
_PROBED = 2  # tokens
_PADDED = 2  # times as long as the shortest text of a batch the longest may be
_TOKENS = 1 << 16  # of what a batch sees, padding included
_SHORT = 256  # tokens: up to here padding costs nothing worth mentioning


@dataclass(frozen=True, slots=True)
class Part:
    """What a layer keeps of each token."""

    layer: int  # its place in the cache
    kind: str
    shape: tuple[int, ...]  # of one token: (heads, dim), or (dim,)

    @property
    def elements(self) -> int:
        """Return how many numbers that is."""
        return prod(self.shape)


def find_parts(model: PreTrainedModel) -> tuple[Part, ...]:
    """Return what a model's layers keep in a cache; raise whatever its code does if it is of another kind."""
    seen: dict[tuple[int, str], Part] = {}

    def note(layer: int, kind: str, values: Tensor) -> Tensor:
        if values.shape[0] != 1 or values.shape[-2] != _PROBED:
            raise ValueError(f"its {kind} have the shape {tuple(values.shape)}")
        if (layer, kind) in seen:
            raise ValueError(f"it keeps two sets of {kind} in one layer")
        heads = values.shape[1:-2]
        seen[layer, kind] = Part(layer, kind, (*heads, values.shape[-1]))
        return values

    ids = torch.zeros(1, _PROBED, dtype=torch.int64, device=model.device)
    with torch.inference_mode():
        model(
            **_Arguments(model).of(
                ids, torch.arange(_PROBED, device=ids.device)[None], _Seen(note, 0, _PROBED)
            )
        )
    if not seen:
        raise ValueError("it keeps nothing in its cache")
    return tuple(seen.values())


def padded_steps(sequences: list[Sequence]) -> list[list[Chunk]]:
    """Return steps in which each token of the shorter prompt is padded, beside one far behind it."""
    long, short = sequences
    first = long.length - short.length
    together = [
        [Chunk(long, first + at, first + at + 1), Chunk(short, at, at + 1)] for at in range(short.length)
    ]
    return [[Chunk(long, 0, first)], *together] if first > 0 else together


class _Arguments:
    """What a model's forward is given, by the names that it has for it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._cache = cache_parameter(model)
        self._takes = inspect.signature(model.forward).parameters

    def of(self, ids: Tensor, positions: Tensor, cache: Cache, mask: Tensor | None = None) -> dict[str, Any]:
        """Return them for ids and positions (sequences, tokens), and a mask (sequences, kept tokens)."""
        given: dict[str, Any] = {"input_ids": ids, "use_cache": True, self._cache: cache}
        if "position_ids" in self._takes:
            given["position_ids"] = positions
        if mask is not None:
            given["attention_mask"] = mask
        return given


_Read = Callable[[int, str, Tensor], Tensor]  # keeps what a layer computed, and returns all it has kept


class _Seen(Cache):
    """Transformers' cache for one forward pass."""

    def __init__(self, read: _Read, before: int, tokens: int) -> None:
        """`before`: how many tokens are kept of each sequence, `tokens`: how many are computed."""
        super().__init__(layers=[])
        self._made = (read, before, tokens)

    def _layer(self, index: int) -> _SeenLayer:
        while len(self.layers) <= index:
            self.layers.append(_SeenLayer(len(self.layers), *self._made))
        layer: _SeenLayer = self.layers[index]
        return layer

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Keep keys and values, and return all of them."""
        return self._layer(layer_idx).update(key_states, value_states)

    def update_indexer(self, indexer_key_states: Tensor, layer_idx: int) -> Tensor:
        """Keep the keys by which others are chosen, and return all of them."""
        return self._layer(layer_idx).update_indexer(indexer_key_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return how many tokens are kept."""
        return self._layer(layer_idx).get_seq_length()

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        """Return how many are kept and computed, and where those begin."""
        return self._layer(layer_idx).get_mask_sizes(query_length)


class _SeenLayer(CacheLayerMixin):
    is_sliding = False  # what is too old is masked, and kept

    def __init__(self, index: int, read: _Read, before: int, tokens: int) -> None:
        super().__init__()
        self._index = index
        self._read = read
        self._kept = before
        self._all = before + tokens
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: there is memory for it."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self._kept = self._all
        keys = self._read(self._index, _KEYS, key_states)
        return keys, self._read(self._index, _VALUES, value_states)

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        return self._read(self._index, _INDEXER, indexer_key_states)

    def get_seq_length(self) -> int:
        return self._kept

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._kept + query_length, 0

    def get_max_length(self) -> int:
        return -1


@dataclass(frozen=True, slots=True, eq=False)
class _Batch:
    """Pieces of so many tokens each, and where in the blocks is what they see and what they leave."""

    chunks: tuple[Chunk, ...]
    seen: Tensor  # (sequences, kept and new tokens)
    mask: Tensor | None  # the same: 1 where it isn't padding; None: nothing is

    @property
    def size(self) -> int:
        """Return how many tokens of each sequence are computed."""
        return self.chunks[0].size


class BatchedRunner:
    """Runs a step in a few forward passes over a paged cache that the model's own attention reads."""

    def __init__(
        self,
        model: PreTrainedModel,
        parts: Several[Part],
        blocks: int,
        dtype: torch.dtype,
        adapting: Adapting | None = None,
    ) -> None:
        self._model = model
        self._arguments = _Arguments(model)
        self._head = Head(model)
        self._adapting = adapting
        self._kept = {
            (part.layer, part.kind): torch.empty(blocks, PAGE, *part.shape, dtype=dtype, device=model.device)
            for part in parts
        }
        self.arrays = tuple(self._kept.values()) if model.device.type == "cpu" else ()

    @torch.inference_mode()
    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Tensor:
        """Return all logits, of shape (rows, vocabulary), in float32."""
        chunks = pieces.chunks
        found: dict[int, Tensor] = {}
        for batch in self._batches(chunks):
            with ExitStack() as stack:
                if len(batch.chunks) == 1:
                    stack.enter_context(working_for(batch.chunks[0].sequence))
                logits = self._run(batch)
            for chunk, own in zip(batch.chunks, logits, strict=True):
                found[id(chunk)] = own
        return torch.cat([found[id(chunk)] for chunk in chunks])

    def _batches(self, chunks: Several[Chunk]) -> Iterator[_Batch]:
        singles = sorted((each for each in chunks if each.size == 1), key=lambda each: -each.stop)
        while singles:
            longest = singles[0].stop
            together = [each for each in singles if longest <= max(_PADDED * each.stop, _SHORT)]
            together = together[: max(_TOKENS // longest, 1)]
            yield self._batch(together)
            singles = singles[len(together) :]
        yield from (self._batch([each]) for each in chunks if each.size > 1)

    def _batch(self, chunks: Several[Chunk]) -> _Batch:
        longest = chunks[0].stop
        seen = np.empty((len(chunks), longest), dtype=np.int64)
        mask = np.ones_like(seen)
        for row, hidden, chunk in zip(seen, mask, chunks, strict=True):
            padding = longest - chunk.stop
            row[padding:] = _places(chunk)
            row[:padding] = row[padding]  # anything that is a number
            hidden[:padding] = 0
        device = self._model.device
        padded = chunks[-1].stop < longest
        return _Batch(
            tuple(chunks),
            torch.from_numpy(seen).to(device),
            torch.from_numpy(mask).to(device) if padded else None,
        )

    def _run(self, batch: _Batch) -> list[Tensor]:
        """Return the logits of each piece, (rows, vocabulary)."""
        device, size = self._model.device, batch.size
        ids = np.stack([each.sequence.ids[each.start : each.stop] for each in batch.chunks])
        positions = np.stack([np.arange(each.start, each.stop) for each in batch.chunks])
        adapters = np.repeat([each.sequence.request.adapter for each in batch.chunks], size)
        if self._adapting is not None:
            self._adapting.begin_rows(adapters)
        wanted = max(each.logit_rows for each in batch.chunks)
        rows = torch.arange(size - wanted, size, device=device)
        before = batch.seen.shape[1] - size
        given = self._arguments.of(
            torch.from_numpy(ids).to(device),
            torch.from_numpy(positions).to(device),
            _Seen(self._reader(batch), before, size),
            batch.mask,
        )
        output = self._model(**given, **self._head.arguments(rows))
        logits = self._head.of_each(output.logits, rows)
        return [own[wanted - each.logit_rows :] for each, own in zip(batch.chunks, logits, strict=True)]

    def _reader(self, batch: _Batch) -> _Read:
        """Return what puts a pass's keys into the blocks and takes all that is seen out of them."""
        new = batch.seen[:, batch.seen.shape[1] - batch.size :].flatten()
        seen, shape = batch.seen.flatten(), batch.seen.shape

        def read(layer: int, kind: str, values: Tensor) -> Tensor:
            kept = self._kept[layer, kind].flatten(0, 1)
            headed = values.dim() == 4  # (sequences, heads, tokens, dim)
            tokens = values.transpose(1, 2) if headed else values
            kept.index_copy_(0, new, tokens.flatten(0, 1).to(kept.dtype))
            found = kept.index_select(0, seen).view(*shape, *kept.shape[1:]).to(values.dtype)
            return (
                found.transpose(1, 2).contiguous() if headed else found
            )  # as transformers' own cache gives it

        return read


def _places(chunk: Chunk) -> NDArray[np.int64]:
    """Return where what a piece sees is kept, itself included."""
    at = np.arange(chunk.stop)
    blocks = np.asarray(chunk.sequence.blocks, dtype=np.int64)
    return blocks[at // PAGE] * PAGE + at % PAGE
