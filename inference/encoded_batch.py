"""Texts behind an encoder that go on together: their prompts padded on the right, their texts on the left."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer
from transformers.modeling_outputs import BaseModelOutput

from inference.encoded_places import PlacedDecoder

Pair = tuple[Tensor, Tensor]  # keys and values, (rows, heads, tokens, head_dim)


@dataclass(frozen=True, slots=True, eq=False)
class Part:
    """What is known of one text: of each layer, and what the encoder made of its prompt."""

    source: Tensor  # (1, prompt tokens, hidden)
    own: tuple[Pair, ...]  # of its text, by layers
    cross: tuple[Pair, ...]  # of its prompt

    @classmethod
    def of(cls, source: Any, cache: EncoderDecoderCache) -> Part:
        """Return what a model has kept of a text that was alone."""
        layers = zip(cache.self_attention_cache.layers, cache.cross_attention_cache.layers, strict=True)
        pairs = [((own.keys, own.values), (cross.keys, cross.values)) for own, cross in layers]
        return cls(
            source.last_hidden_state, tuple(own for own, _ in pairs), tuple(cross for _, cross in pairs)
        )

    @property
    def cache(self) -> EncoderDecoderCache:
        """Return it as transformers takes it."""
        return _cache_of(self.own, self.cross)


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

    def __init__(self, parts: Sequence[Part]) -> None:
        self.rows = len(parts)
        self._prompts = [part.source.shape[1] for part in parts]
        self._texts = [part.own[0][0].shape[2] for part in parts]
        longest, texts = max(self._prompts), max(self._texts)
        right = [longest - size for size in self._prompts]
        left = [texts - size for size in self._texts]
        self._source = torch.cat(
            [pad(part.source, (0, 0, 0, by)) for part, by in zip(parts, right, strict=True)]
        )
        self._source_mask = _mask(right, longest, self._source.device, at_end=True)
        self._text_mask = _mask(left, texts, self._source.device, at_end=False)
        self._cache = _cache_of(
            _stacked([part.own for part in parts], lambda row: (0, 0, left[row], 0)),
            _stacked([part.cross for part in parts], lambda row: (0, 0, 0, right[row])),
        )

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

    def part(self, row: int) -> Part:
        """Return what is known of one text."""
        prompt, text = self._prompts[row], self._texts[row]
        own, cross = (
            [(layer.keys[row : row + 1], layer.values[row : row + 1]) for layer in cache.layers]
            for cache in (self._cache.self_attention_cache, self._cache.cross_attention_cache)
        )
        return Part(
            self._source[row : row + 1, :prompt],
            tuple((keys[:, :, -text:], values[:, :, -text:]) for keys, values in own),
            tuple((keys[:, :, :prompt], values[:, :, :prompt]) for keys, values in cross),
        )


def _cache_of(own: Sequence[Pair], cross: Sequence[Pair]) -> EncoderDecoderCache:
    caches = DynamicCache(), DynamicCache()
    for cache, pairs in zip(caches, (own, cross), strict=True):
        for layer, (keys, values) in enumerate(pairs):
            cache.update(keys, values, layer)
    return EncoderDecoderCache(*caches)


def _stacked(
    rows: Sequence[Sequence[Pair]], padding: Callable[[int], tuple[int, int, int, int]]
) -> list[Pair]:
    """Return the layers' keys and values of all rows, each padded as `padding` says of its row."""

    def stack(layer: int, which: int) -> Tensor:
        return torch.cat([pad(pairs[layer][which], padding(row)) for row, pairs in enumerate(rows)])

    return [(stack(layer, 0), stack(layer, 1)) for layer in range(len(rows[0]))]


def _mask(padding: Sequence[int], length: int, device: torch.device, *, at_end: bool) -> Tensor:
    """Return 1 for what is there and 0 for padding, of shape (rows, length)."""
    places = torch.arange(length, device=device)[None]
    by = torch.tensor(padding, device=device)[:, None]
    return ((places < length - by) if at_end else (places >= by)).long()
