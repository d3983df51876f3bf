"""Texts behind an encoder that go on together: their prompts padded on the right, their texts on the left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.modeling_outputs import BaseModelOutput

from inference.encoded.places import PlacedDecoder

Pair = tuple[Tensor, Tensor]  # keys and values, (rows, heads, tokens, head_dim)


@dataclass(frozen=True, slots=True, eq=False)
class Rows:
    """Texts as rows of what a model keeps of them, or of some more."""

    source: Tensor  # (all rows, prompt tokens, hidden): what the encoder made of prompts
    cache: EncoderDecoderCache
    prompts: tuple[int, ...]  # tokens of each text's prompt
    texts: tuple[int, ...]  # and of what was written
    chosen: Tensor | None = None  # (texts): which of all rows these are; None: they are all

    @classmethod
    def of(cls, source: Any, cache: EncoderDecoderCache) -> Rows:
        """Return what a model has kept of a text that was alone."""
        states: Tensor = source.last_hidden_state
        keys = cache.self_attention_cache.layers[0].keys
        assert keys is not None, "the decoder has begun"
        return cls(states, cache, (states.shape[1],), (keys.shape[2],))

    @property
    def alone(self) -> EncoderDecoderCache:
        """Return what is kept of one text as transformers takes it."""
        (prompt,), (text,) = self.prompts, self.texts
        return _cache_of([self], prompt, text)

    def states(self, width: int) -> Tensor:
        """Return what the encoder made of the prompts (texts, width, hidden), padded on the right."""
        return self._taken(self.source, 1, width, at_end=True)

    def pairs(self, width: int, *, crossing: bool) -> Iterator[Pair]:
        """Yield each layer's pair, of texts padded on the left or, if `crossing`, of prompts on the right."""
        cache = self.cache.cross_attention_cache if crossing else self.cache.self_attention_cache
        for layer in cache.layers:
            keys, values = (
                self._taken(each, 2, width, at_end=crossing) for each in (layer.keys, layer.values)
            )
            yield keys, values

    def _taken(self, kept: Tensor, dim: int, width: int, *, at_end: bool) -> Tensor:
        size = kept.shape[dim]
        if size > width:
            kept = kept.narrow(dim, 0 if at_end else size - width, width)
        if self.chosen is not None:
            kept = kept.index_select(0, self.chosen)
        if size < width:
            behind = (0, 0) * (kept.dim() - 1 - dim)
            kept = pad(kept, (*behind, *((0, width - size) if at_end else (width - size, 0))))
        return kept


def joinable(source: object, cache: object) -> bool:
    """Return whether what a model keeps is tokens' keys and values, so that several can be one.

    Experts, which routers' logits tell of, may have room for so many tokens of a batch, whoever's they are.
    """
    if hasattr(source, "router_logits") or not isinstance(cache, EncoderDecoderCache):
        return False
    own, cross = cache.self_attention_cache.layers, cache.cross_attention_cache.layers
    known = (DynamicLayer, DynamicSlidingWindowLayer)
    return all(type(layer) in known for layer in own) and all(type(layer) is DynamicLayer for layer in cross)


def is_whole(cache: object) -> bool:
    """Return whether all tokens of a text are kept: none has left a layer's window yet."""
    if not isinstance(cache, EncoderDecoderCache):
        return True
    layers = cache.self_attention_cache.layers
    return all(layer.keys is None or layer.get_seq_length() == layer.keys.shape[-2] for layer in layers)


class Batch:
    """Several texts as rows of one cache."""

    def __init__(self, blocks: Sequence[Rows]) -> None:
        self._prompts = [size for block in blocks for size in block.prompts]
        self._texts = [size for block in blocks for size in block.texts]
        self.rows = len(self._prompts)
        longest, texts = max(self._prompts), max(self._texts)
        self._source = torch.cat([block.states(longest) for block in blocks])
        device = self._source.device
        self._source_mask = _mask([longest - size for size in self._prompts], longest, device, at_end=True)
        self._text_mask = _mask([texts - size for size in self._texts], texts, device, at_end=False)
        self._cache = _cache_of(blocks, longest, texts)

    def step(self, decoder: PlacedDecoder, tokens: Tensor) -> Tensor:
        """Compute a token (rows, 1) more of each text; return the logits (rows, vocabulary)."""
        before = self._texts
        self._text_mask = pad(self._text_mask, (0, 1), value=1)
        self._texts = [size + 1 for size in before]
        return decoder.step(
            before,
            tokens,
            encoder_outputs=BaseModelOutput(last_hidden_state=self._source),
            attention_mask=self._source_mask,
            decoder_attention_mask=self._text_mask,
            past_key_values=self._cache,
        )

    def some(self, rows: Sequence[int]) -> Rows:
        """Return what is known of some texts, as long as none of the batch goes on."""
        whole = list(rows) == list(range(self.rows))
        return Rows(
            self._source,
            self._cache,
            tuple(self._prompts[row] for row in rows),
            tuple(self._texts[row] for row in rows),
            None if whole else torch.tensor(rows, device=self._source.device),
        )


def _cache_of(blocks: Sequence[Rows], longest: int, texts: int) -> EncoderDecoderCache:
    """Return the cache of all texts of some blocks.

    It is made layer by layer: nothing lies beside it but what was kept of the texts before.
    """
    caches = DynamicCache(), DynamicCache()
    for cache, width, crossing in zip(caches, (texts, longest), (False, True), strict=True):
        layers = zip(*(block.pairs(width, crossing=crossing) for block in blocks), strict=True)
        for layer, of_blocks in enumerate(layers):
            keys, values = (torch.cat(each) for each in zip(*of_blocks, strict=True))
            cache.update(keys, values, layer)
    return EncoderDecoderCache(*caches)


def _mask(padding: Sequence[int], length: int, device: torch.device, *, at_end: bool) -> Tensor:
    """Return 1 for what is there and 0 for padding, of shape (rows, length)."""
    places = torch.arange(length, device=device)[None]
    by = torch.tensor(padding, device=device)[:, None]
    return ((places < length - by) if at_end else (places >= by)).long()
