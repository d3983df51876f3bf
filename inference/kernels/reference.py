"""Paged attention in plain torch: the oracle of every other kernel, and the fallback.

A step packs the tokens of several sequences into one row of shape (tokens,). Sequences that
compute a single token come first ("decodes") and attend together, padded to the longest; each
longer piece of a prompt ("span") attends alone.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from inference.kv_cache.blocks import PAGE, blocks_for


@dataclass(frozen=True, slots=True)
class Piece:
    """The tokens [start, stop) of one sequence, and the blocks of its cache from position 0 on."""

    start: int
    stop: int
    blocks: Several[int]
    limits: NDArray[np.int64] | None = None  # (size,): as of NativeStep

    @property
    def size(self) -> int:
        """Return how many tokens are computed."""
        return self.stop - self.start

    @property
    def pages(self) -> Several[int]:
        """Return the blocks that hold what these tokens see."""
        return self.blocks[: blocks_for(self.stop)]

    @property
    def slots(self) -> NDArray[np.int64]:
        """Return where in the cache these tokens go, of shape (size,)."""
        first = self.start // PAGE
        pages = np.array(self.pages[first:], dtype=np.int64)
        slots = (pages[:, None] * PAGE + np.arange(PAGE)).ravel()
        return slots[self.start - first * PAGE : self.stop - first * PAGE]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attention:
    """What one layer wants of its attention."""

    scaling: float
    window: int | None = None  # a token sees this many of the newest tokens, itself among them
    chunk: int | None = None  # and none before its own chunk: these begin at multiples of so many
    softcap: float | None = None  # scores become softcap * tanh(score / softcap)
    sinks: Tensor | None = None  # (heads,): one more score each, whose share goes nowhere
    # (heads,): what a score loses by each token between query and key (ALiBi: Press et al., arXiv:2108.12409)
    slopes: Tensor | None = None
    latent: bool = False  # a token's value is the first numbers of its key, and isn't kept beside it

    def __post_init__(self) -> None:
        assert self.slopes is None or self.softcap is None, "no model was seen that has both"

    @property
    def is_plain(self) -> bool:
        """Return whether scores are scaled, and nothing else is done with them."""
        features = (self.window, self.chunk, self.softcap, self.sinks, self.slopes)
        return all(each is None for each in features)

    def with_slopes(self, bias: Tensor, distances: Tensor) -> Tensor:
        """Return what is added to scores, (n, 1, queries, keys), or (n, heads, queries, keys) with slopes.

        That is `bias`, and what slopes make of the keys' `distances`, 0 or less: (n, queries, keys) each.
        """
        if self.slopes is None:
            return bias[:, None]
        lost = self.slopes.to(distances.device)[:, None, None] * distances[:, None]
        return bias[:, None] + lost.to(bias.dtype)

    def first_seen(self, positions: Tensor) -> Tensor:
        """Return the first position that tokens at such positions see, of the same shape."""
        first = torch.zeros_like(positions)
        if self.window is not None:
            first = torch.maximum(first, positions - self.window + 1)
        if self.chunk is not None:
            first = torch.maximum(first, positions - positions % self.chunk)
        return first


class Step:
    """Where a packed step's keys and values go, and what each token sees; shared by all layers."""

    def __init__(self, pieces: Several[Piece], device: torch.device, dtype: torch.dtype) -> None:
        decodes = next((i for i, piece in enumerate(pieces) if piece.size > 1), len(pieces))
        self.decodes = decodes if decodes > 1 else 0  # alone, nothing needs padding: a span does it
        slots = np.concatenate([piece.slots for piece in pieces])
        self.slots = torch.from_numpy(slots).to(device)  # (tokens,)
        self.spans = tuple(_Span(piece, device) for piece in pieces[self.decodes :])
        self._device = device
        self._dtype = dtype
        self._biases: dict[tuple[int | None, ...], Tensor | None] = {}
        self._pad_decodes(pieces[: self.decodes])

    def _pad_decodes(self, pieces: Several[Piece]) -> None:
        pages = max((len(piece.pages) for piece in pieces), default=0)
        table = np.zeros((len(pieces), pages), dtype=np.int64)  # page 0 fills up, unseen
        for row, piece in zip(table, pieces, strict=True):
            row[: len(piece.pages)] = piece.pages
        lengths = np.array([piece.stop for piece in pieces], dtype=np.int64)
        unused = (np.arange(pages * PAGE)[None, :] >= lengths[:, None]).ravel().nonzero()[0]
        self.lengths = torch.from_numpy(lengths).to(self._device)  # (decodes,)
        self.table = torch.from_numpy(table).to(self._device)  # (decodes, pages)
        # Pages hold what their last owner left, which may be NaN, and 0 * NaN is NaN: it must go.
        self.unused = torch.from_numpy(unused).to(self._device)  # of the gathered tokens

    def decode_bias(self, how: Attention) -> Tensor:
        """Return what is added to the decodes' scores, of shape (decodes, 1 or heads, 1, pages * PAGE)."""
        at = torch.arange(self.table.shape[1] * PAGE, device=self._device)[None, :]
        last = self.lengths[:, None] - 1
        bias = self._as_bias((at <= last) & (at >= how.first_seen(last)))
        return how.with_slopes(bias[:, None], (at - last)[:, None])

    def bias(self, index: int, how: Attention) -> Tensor | None:
        """Return what is added to the scores of span `index` (-1: the decodes); None: nothing."""
        key = (index, how.window, how.chunk, None if how.slopes is None else how.slopes.data_ptr())
        if key not in self._biases:
            self._biases[key] = self.decode_bias(how) if index < 0 else self._span_bias(index, how)
        return self._biases[key]

    def _span_bias(self, index: int, how: Attention) -> Tensor | None:
        span = self.spans[index]
        if (
            span.stop - span.start == 1
            and how.slopes is None
            and min(each or span.stop for each in (how.window, how.chunk)) >= span.stop
        ):
            return None
        queries = torch.arange(span.start, span.stop, device=self._device)[:, None]
        keys = torch.arange(span.stop, device=self._device)[None, :]
        seen = keys <= queries if span.limits is None else keys < span.limits[:, None]
        seen &= keys >= how.first_seen(queries)
        return how.with_slopes(self._as_bias(seen)[None], (keys - queries)[None])

    def _as_bias(self, seen: Tensor) -> Tensor:
        return torch.zeros(seen.shape, device=self._device, dtype=self._dtype).masked_fill(~seen, -torch.inf)


class _Span:
    def __init__(self, piece: Piece, device: torch.device) -> None:
        self.start, self.stop = piece.start, piece.stop
        self.limits = None if piece.limits is None else torch.from_numpy(piece.limits).to(device)
        self.blocks = torch.tensor(piece.pages, dtype=torch.int64, device=device)


def write(cache: Tensor, slots: Tensor, values: Tensor) -> None:
    """Put `values` (tokens, heads, dim) into `cache` (blocks, PAGE, heads, dim) at `slots` (tokens,)."""
    cache.view(-1, *cache.shape[2:]).index_copy_(0, slots, values)


def attend(query: Tensor, keys: Tensor, values: Tensor, step: Step, how: Attention) -> Tensor:
    """Return the attention of a packed step.

    Shapes: query (tokens, heads, dim), keys (blocks, PAGE, kv_heads, dim), values the same with
    their own dim; result (tokens, heads, values' dim). The step's own keys and values are written.
    """
    parts = [_attend_decodes(query[: step.decodes], keys, values, step, how)] if step.decodes else []
    row = step.decodes
    for index, span in enumerate(step.spans):
        size = span.stop - span.start
        parts.append(_attend_span(query[row : row + size], keys, values, step, index, how))
        row += size
    return torch.cat(parts) if len(parts) > 1 else parts[0]


def _attend_span(
    query: Tensor, keys: Tensor, values: Tensor, step: Step, index: int, how: Attention
) -> Tensor:
    span = step.spans[index]
    k, v = (_gather(cache, span.blocks)[None, : span.stop] for cache in (keys, values))
    given, bias = query[None].transpose(1, 2), step.bias(index, how)
    return attend_padded(given, k, v, bias, how)[0].transpose(0, 1)


def _attend_decodes(query: Tensor, keys: Tensor, values: Tensor, step: Step, how: Attention) -> Tensor:
    pages = step.table.flatten()
    k = _gather(keys, pages).index_fill_(0, step.unused, 0.0)
    v = _gather(values, pages).index_fill_(0, step.unused, 0.0)
    k, v = (each.view(step.decodes, -1, *each.shape[1:]) for each in (k, v))
    return attend_padded(query[:, :, None], k, v, step.bias(-1, how), how)[:, :, 0]


def attend_padded(query: Tensor, keys: Tensor, values: Tensor, bias: Tensor | None, how: Attention) -> Tensor:
    """Attend with query (n, heads, q, dim) and keys, values (n, k, kv_heads, dim); as query, values' dim."""
    keys, values = keys.transpose(1, 2), values.transpose(1, 2)
    grouped = keys.shape[1] != query.shape[1]
    if how.softcap is None and how.sinks is None:
        shape = query.shape
        if shape[2] == 1:  # heads that share keys become queries of one head: those are read once
            query, grouped = query.reshape(shape[0], keys.shape[1], -1, shape[3]), False
            if bias is not None and how.slopes is not None:
                bias = bias.reshape(shape[0], keys.shape[1], -1, bias.shape[-1])
        attended = scaled_dot_product_attention(
            query, keys, values, attn_mask=bias, scale=how.scaling, enable_gqa=grouped
        )
        return attended.reshape(*shape[:3], -1)
    if grouped:
        keys, values = (each.repeat_interleave(query.shape[1] // each.shape[1], 1) for each in (keys, values))
    scores = (query @ keys.transpose(-1, -2)) * how.scaling
    if how.softcap is not None:
        scores = how.softcap * torch.tanh(scores / how.softcap)
    if bias is not None:
        scores = scores + bias
    return _softmax(scores, how.sinks).to(values.dtype) @ values


def _softmax(scores: Tensor, sinks: Tensor | None) -> Tensor:
    """Return the softmax over the last axis in float32, with one sink per head if there are any."""
    scores = scores.float()
    if sinks is None:
        return scores.softmax(-1)
    sink = sinks.float().view(1, -1, 1, 1).expand(*scores.shape[:-1], 1)
    return torch.cat([scores, sink], -1).softmax(-1)[..., :-1]


def _gather(cache: Tensor, blocks: Tensor) -> Tensor:
    """Return the tokens of `blocks`, of shape (len(blocks) * PAGE, heads, dim)."""
    return cache.index_select(0, blocks).flatten(0, 1)
