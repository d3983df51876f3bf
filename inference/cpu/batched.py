"""Steps through a model's own attention, as transformers' own batches are: the level `batched`.

For models that don't call transformers' attention interface, or compute what a query sees themselves. Their
code is given a cache of transformers' kind, whose layers keep each sequence's part in blocks: single tokens
(and short pieces of the same size) of many sequences are one batch, with what is before them padded on the
left, and each longer piece of a prompt is computed alone. So prompts are computed in pieces, and known blocks
are found again.

Compressed attention (DeepSeek V4) makes one key of several tokens in a row, by where they are in their text:
padding would move them, so that only texts of one length are a batch. Tokens are kept, and compressed anew in
each pass: it takes longer with the text, and more memory than transformers' own cache, which keeps the keys.
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
from transformers import Cache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin

from inference.cpu.runner import Head
from inference.kv_cache.blocks import PAGE
from inference.models.lora import Adapting
from inference.planning.positions import first_position
from inference.recurrent.layers import cache_parameter
from inference.sequences.faults import working_for
from inference.sequences.state import Chunk, Pieces

_KEYS, _VALUES, _INDEXER = "keys", "values", "indexer keys"
_COMPRESSED = ("to compress", "gates")  # of which tokens in a row become one key, and one value
_PROBED = 2  # tokens
_PADDED = 2  # times as long as the shortest text of a batch the longest may be
_PIECE = 8  # tokens: longer pieces are computed alone, as they fill a pass
_TOKENS = 1 << 16  # of what all tokens of a batch see, padding included
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

    @property
    def windowed(self) -> bool:
        """Return whether tokens are taken together by where they are in their text."""
        return self.kind.endswith(_COMPRESSED)


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
    positions = torch.arange(_PROBED, device=model.device)[None]
    with torch.inference_mode():
        model(**_Arguments(model).of(ids, positions, _Seen(model.config, note, 0, _PROBED)))
    if not seen:
        raise ValueError("it keeps nothing in its cache")
    return tuple(seen.values())


class _Arguments:
    """What a model's forward is given, by the names that it has for it."""

    def __init__(self, model: PreTrainedModel) -> None:
        self._cache = cache_parameter(model)
        self._first = first_position(model.config.get_text_config())
        self._takes = inspect.signature(model.forward).parameters

    def of(self, ids: Tensor, positions: Tensor, cache: Cache, mask: Tensor | None = None) -> dict[str, Any]:
        """Return them for ids and positions (sequences, tokens), and a mask (sequences, kept tokens)."""
        given: dict[str, Any] = {"input_ids": ids, "use_cache": True, self._cache: cache}
        if "position_ids" in self._takes:
            given["position_ids"] = positions + self._first
        if mask is not None:
            given["attention_mask"] = mask
        return given


_Read = Callable[[int, str, Tensor], Tensor]  # keeps what a layer computed, and returns all it has kept


class _Seen(Cache):
    """Transformers' cache for one forward pass."""

    def __init__(self, config: PreTrainedConfig, read: _Read, before: int, tokens: int) -> None:
        """`before`: how many tokens are kept of each sequence, `tokens`: how many are computed."""
        super().__init__(layers=[])
        text = config.get_text_config()
        rates: dict[str, int] = getattr(text, "compress_rates", None) or {}
        self._rates = [rates.get(kind, 1) for kind in getattr(text, "layer_types", None) or () if rates]
        self._made = (read, before, tokens)

    def _layer(self, index: int) -> _SeenLayer:
        while len(self.layers) <= index:
            at = len(self.layers)
            rate = self._rates[at] if at < len(self._rates) else 1
            self.layers.append(_SeenLayer(at, rate, *self._made))
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

    def __init__(self, index: int, rate: int, read: _Read, before: int, tokens: int) -> None:
        """`rate`: how many tokens in a row are compressed to one."""
        super().__init__()
        self._index = index
        self._rate = rate
        self._read = read
        self._kept = before
        self._all = before + tokens
        self.is_initialized = True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: there is memory for it."""

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        self._kept = self._all
        keys = self._read(self._index, _KEYS, key_states)
        return keys, keys if value_states is key_states else self._read(self._index, _VALUES, value_states)

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        return self._read(self._index, _INDEXER, indexer_key_states)

    def store_compression_weights(self, name: str, kv: Tensor, gate: Tensor) -> tuple[Tensor, Tensor, int]:
        """Return all that is to be compressed, from the text's first token on, as far as windows are full."""
        all_kv, all_gates = (
            self._read(self._index, f"{name} {kind}", each)
            for kind, each in zip(_COMPRESSED, (kv, gate), strict=True)
        )
        whole = all_kv.shape[1] - all_kv.shape[1] % self._rate
        return all_kv[:, :whole], all_gates[:, :whole], 0

    def update_overlap_state(self, *_: Any) -> tuple[None, None]:
        """Return nothing: before the first window there is none."""
        return None, None

    def update_compressor_states(self, _: str, compressed: Tensor) -> Tensor:
        """Return what was compressed: it is all there is."""
        return compressed

    def get_seq_length(self) -> int:
        return self._kept

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self._kept + query_length, 0

    def get_max_length(self) -> int:
        return -1


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
        self._pads = not any(part.windowed for part in parts)
        self._kept = {
            (part.layer, part.kind): torch.empty(blocks, PAGE, *part.shape, dtype=dtype, device=model.device)
            for part in parts
        }
        self.arrays = tuple(self._kept.values())

    @torch.inference_mode()
    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Tensor:
        """Return all logits, of shape (rows, vocabulary), in float32."""
        works = _works(pieces)
        found: dict[int, Tensor] = {}
        for batch in _batches(works, pads=self._pads):
            with ExitStack() as stack:
                if len(batch) == 1:
                    stack.enter_context(working_for(batch[0].chunk.sequence))
                logits = self._run(batch)
            found.update((work.place, own) for work, own in zip(batch, logits, strict=True))
        return torch.cat([found[place] for place in range(len(works))])

    def _run(self, batch: Several[_Work]) -> list[Tensor]:
        """Return the logits of each piece, (rows, vocabulary), of a batch as `_batches` makes it."""
        device, size, longest = self._model.device, batch[0].chunk.size, batch[0].chunk.stop
        if self._adapting is not None:
            adapters = [work.chunk.sequence.request.place for work in batch]
            self._adapting.begin_rows(np.repeat(adapters, size))
        seen, mask = _seen_by(batch)
        wanted = max(work.rows for work in batch)
        rows = torch.arange(size - wanted, size, device=device)
        given = self._arguments.of(
            torch.from_numpy(np.stack([work.ids for work in batch])).to(device),
            torch.from_numpy(np.stack([np.arange(w.chunk.start, w.chunk.stop) for w in batch])).to(device),
            _Seen(
                self._model.config,
                self._reader(torch.from_numpy(seen).to(device), size),
                longest - size,
                size,
            ),
            None if mask.all() else torch.from_numpy(mask.astype(np.int64)).to(device),
        )
        output = self._model(**given, **self._head.arguments(rows))
        logits = self._head.of_each(output.logits, rows)
        return [own[wanted - work.rows :] for work, own in zip(batch, logits, strict=True)]

    def _reader(self, places: Tensor, size: int) -> _Read:
        """Return what puts a pass's keys into the blocks and takes all that is seen out of them.

        `places` (sequences, tokens) are those in the blocks, the last `size` being computed.
        """
        new = places[:, places.shape[1] - size :].flatten()
        seen, shape = places.flatten(), places.shape

        def read(layer: int, kind: str, values: Tensor) -> Tensor:
            kept = self._kept[layer, kind].flatten(0, 1)
            headed = values.dim() == 4  # (sequences, heads, tokens, dim)
            tokens = values.transpose(1, 2) if headed else values
            kept.index_copy_(0, new, tokens.flatten(0, 1).to(kept.dtype))
            found = kept.index_select(0, seen).view(*shape, *kept.shape[1:]).to(values.dtype)
            if not headed:
                return found
            return found.transpose(1, 2).contiguous()  # some models' code takes views that need it

        return read


@dataclass(frozen=True, slots=True, eq=False)
class _Work:
    """A step's piece."""

    place: int  # among the step's
    chunk: Chunk
    ids: NDArray[np.int64]  # (tokens,): not its sequence's own where they are guessed
    rows: int  # of its last tokens, that need logits


def _works(pieces: Pieces) -> list[_Work]:
    ends = np.cumsum(pieces.stops - pieces.starts)
    rows = np.diff(np.searchsorted(pieces.rows, ends), prepend=0).tolist()
    ids = np.split(pieces.ids, ends[:-1])
    return [_Work(*each) for each in zip(range(len(ends)), pieces.chunks, ids, rows, strict=True)]


def _batches(works: Several[_Work], *, pads: bool) -> Iterator[list[_Work]]:
    """Yield pieces that are computed in one pass, short ones of a size together, the longest text first.

    Without `pads` they are those of texts that are equally long.
    """
    left = sorted(works, key=lambda work: (work.chunk.size, -work.chunk.stop))
    while left:
        size, longest = left[0].chunk.size, left[0].chunk.stop
        most = max(_TOKENS // (size * longest), 1) if size <= _PIECE else 1
        together = [
            work
            for work in left[:most]
            if work.chunk.size == size
            and longest <= (max(_PADDED * work.chunk.stop, _SHORT) if pads else work.chunk.stop)
        ]
        yield together
        left = left[len(together) :]


def _seen_by(batch: Several[_Work]) -> tuple[NDArray[np.int64], NDArray[np.bool]]:
    """Return where what each piece sees is, (pieces, tokens), padded on the left, and what isn't padding."""
    longest = batch[0].chunk.stop
    places = np.empty((len(batch), longest), dtype=np.int64)
    real = np.ones(places.shape, dtype=np.bool)
    for row, there, work in zip(places, real, batch, strict=True):
        padding = longest - work.chunk.stop
        row[padding:] = _places(work.chunk)
        row[:padding] = row[padding]  # anything that is a number
        there[:padding] = False
    return places, real


def _places(chunk: Chunk) -> NDArray[np.int64]:
    """Return where what a piece sees is kept, itself included."""
    at = np.arange(chunk.stop)
    blocks = np.asarray(chunk.sequence.blocks, dtype=np.int64)
    return blocks[at // PAGE] * PAGE + at % PAGE
