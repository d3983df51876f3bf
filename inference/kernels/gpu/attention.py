"""Attention over the paged cache: prompts in pieces, decodes and both at once, in one kernel.

A program holds a few queries of one sequence, for all heads that share one head of keys, and goes
over the keys in blocks with a running softmax (Milakov and Gimelshein, arXiv:1805.02867; Dao et al.,
FlashAttention, arXiv:2205.14135). Where the keys are split, each part is a program of its own, and
a second kernel adds the parts up (Flash-Decoding). Sums are float32, exponents are of two.

Equal bits: a row's result depends on its own sequence, the tile, the `Tiles` and the number of
splits, on nothing else of its batch. With one split and `deterministic_tiles` it doesn't depend on
how the prompt was cut either; with several splits it does, since the last query of a program says
where its parts begin.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.gpu.batch import DeviceBatch
from inference.kernels.gpu.interpreter import interpreted
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier
from inference.kernels.gpu.tiles import Tiles, choose_tiles, fitted, power_of_two, rows_of
from inference.kernels.reference import Attention

_LOG2E = 1.4426950408889634


def paged_attention(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    batch: DeviceBatch,
    how: Attention,
    *,
    tiles: Tiles | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the attention of a step, (T, H, Dv), in the queries' dtype.

    query (T, H, D), keys (blocks, PAGE, Hk, D), values (blocks, PAGE, Hk, Dv), of any strides but 1 in
    the last axis; the step's own keys and values are in the cache. A sequence of length 0 gives
    zeros; tokens that no query block has keep what was in `out`. `tiles`: None takes the table's.
    """
    assert query.stride(2) == keys.stride(3) == values.stride(3) == 1, "heads are contiguous"
    heads, kv_heads, value_dim = query.shape[1], keys.shape[2], values.shape[3]
    dim, size = query.shape[2], query.element_size()
    tiles = tiles or choose_tiles(max(dim, value_dim), size, decodes=batch.longest == 1)
    out = query.new_empty(*query.shape[:2], value_dim) if out is None else out
    parts = _Parts.empty(query, value_dim, batch.splits) if batch.splits > 1 else _Parts(out, None, None)
    programs, group = batch.query_blocks.shape[1], heads // kv_heads
    rows = rows_of(batch.tile, group)
    tiles = fitted(tiles, rows, dim, value_dim, size)
    inner, outer = _factors(how)
    shape: dict[str, Any] = {
        "GROUP": group,
        "TILE": batch.tile,
        "VALUE_DIM": value_dim,
        "VALUES": power_of_two(value_dim),
        "SUNK": how.sinks is not None,
    }
    launch(
        _attend, (programs, kv_heads, batch.splits),
        query, keys, values, *parts.tensors, how.sinks, how.slopes,
        batch.tables, batch.slots, batch.starts, batch.lengths, batch.query_blocks,
        inner, outer,
        *query.stride()[:2], *keys.stride()[:3], *values.stride()[:3], *parts.strides, batch.tables.stride(0),
        **shape,
        SPLIT=batch.splits > 1, ROWS=rows, KEYS=tiles.keys,
        DIM=dim, DIMS=power_of_two(dim), PAGE=keys.shape[1],
        WINDOW=how.window or 0, CHUNK=how.chunk or 0, CAPPED=how.softcap is not None,
        SLOPED=how.slopes is not None, UNMASKED=tiles.unmasked,
        WIDEN=interpreted() and query.dtype == torch.bfloat16,
        num_warps=tiles.warps, num_stages=tiles.stages, enable_fp_fusion=True,
    )  # fmt: skip
    if batch.splits > 1:
        launch(
            _merge, (programs * batch.tile, heads),
            *parts.tensors, out, how.sinks, batch.starts, batch.query_blocks, *out.stride()[:2],
            HEADS=heads, SPLITS=batch.splits, **shape, num_warps=2, enable_fp_fusion=True,
        )  # fmt: skip
    return out


@dataclass(frozen=True, slots=True)
class _Parts:
    """What the first kernel writes: the result, or sums that are to be merged."""

    sums: Tensor  # (T, H, Dv), or (T, H, splits, Dv) of float32
    peaks: Tensor | None  # (T, H, splits): the highest score, in powers of two
    totals: Tensor | None  # (T, H, splits): the sum of weights

    @classmethod
    def empty(cls, query: Tensor, value_dim: int, splits: int) -> _Parts:
        shape = (*query.shape[:2], splits)
        sums = query.new_empty(*shape, value_dim, dtype=torch.float32)
        return cls(sums, *(query.new_empty(shape, dtype=torch.float32) for _ in range(2)))

    @property
    def tensors(self) -> tuple[Tensor, Tensor | None, Tensor | None]:
        return self.sums, self.peaks, self.totals

    @property
    def strides(self) -> tuple[int, int]:
        """Return those of tokens and heads; splits are value_dim numbers apart."""
        assert self.sums.stride(-1) == 1, "heads of the result are contiguous"
        return self.sums.stride(0), self.sums.stride(1)


def _factors(how: Attention) -> tuple[float, float]:
    """Return what products are multiplied with before a tanh, and what gives powers of two after it."""
    assert how.scaling > 0, "the highest product is the highest score"
    if how.softcap is None:
        return 1.0, how.scaling * _LOG2E
    return 2 * _LOG2E * how.scaling / how.softcap, how.softcap * _LOG2E


# Tables are as wide as sequences may be long: they change nothing that is worth to be compiled for
@triton.jit(do_not_specialize=["table_row"])
def _attend(
    query, keys, values, sums, peaks, totals, sinks, slopes,
    tables, slots, starts, lengths, query_blocks,
    inner, outer,
    query_row, query_head, key_page, key_token, key_head, value_page, value_token, value_head,
    out_row, out_head, table_row,
    GROUP: tl.constexpr, TILE: tl.constexpr, VALUE_DIM: tl.constexpr, VALUES: tl.constexpr,
    SUNK: tl.constexpr, SPLIT: tl.constexpr,
    ROWS: tl.constexpr, KEYS: tl.constexpr, DIM: tl.constexpr, DIMS: tl.constexpr,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr,
    UNMASKED: tl.constexpr, WIDEN: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    await_earlier(OVERLAPS)
    block, kv_head, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(2)
    sequence = tl.load(query_blocks + block)
    if sequence < 0:
        return
    first = tl.load(query_blocks + tl.num_programs(0) + block)
    start = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - start
    length = tl.load(lengths + sequence)
    past = length - count  # -count in a padding row, which sees no keys then

    r = tl.arange(0, ROWS)
    turn = first + r // GROUP  # which of the sequence's queries
    head = kv_head * GROUP + r % GROUP
    real = (r < TILE * GROUP) & (turn < count)
    row = (start + turn).to(tl.int64)
    position = past + turn

    d = tl.arange(0, DIMS)
    q = tl.load(
        query + (row * query_row + head * query_head)[:, None] + d[None, :],
        mask=real[:, None] & (d < DIM)[None, :],
        other=0.0,
    )
    if WIDEN:
        q = q.to(tl.float32)
    slope = tl.zeros([ROWS], tl.float32)
    if SLOPED:
        slope = tl.load(slopes + head, mask=real, other=0.0).to(tl.float32) * 1.4426950408889634

    # Some row sees each of the keys [low, high); every row sees those before `masked`, below
    high = tl.minimum(past + first + TILE, length)
    low = 0
    if WINDOW > 0:
        low = tl.maximum(past + first - WINDOW + 1, 0)
    if CHUNK > 0:
        low = tl.maximum(low, (past + first) // CHUNK * CHUNK)
    begin = low // KEYS * KEYS
    size = tl.cdiv(tl.cdiv(high - begin, splits), KEYS) * KEYS
    begin += split * size
    end = tl.minimum(begin + size, high)

    peak = tl.full([ROWS], -1e30, tl.float32)  # of no key yet; not -inf, which would give inf - inf
    total = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, VALUES], tl.float32)
    table = tables + tl.load(slots + sequence).to(tl.int64) * table_row
    keys += kv_head * key_head
    values += kv_head * value_head
    masked = begin
    if UNMASKED and WINDOW == 0 and CHUNK == 0:
        masked = tl.maximum(tl.minimum((past + first + 1) // KEYS * KEYS, end), begin)
        acc, peak, total = _go_over(
            acc, peak, total, q, position, slope, keys, values, table, inner, outer, begin, masked, low, high,
            key_page, key_token, value_page, value_token,
            KEYS, DIM, DIMS, VALUE_DIM, VALUES, PAGE, WINDOW, CHUNK, CAPPED, SLOPED, False, WIDEN,
        )  # fmt: skip
    acc, peak, total = _go_over(
        acc, peak, total, q, position, slope, keys, values, table, inner, outer, masked, end, low, high,
        key_page, key_token, value_page, value_token,
        KEYS, DIM, DIMS, VALUE_DIM, VALUES, PAGE, WINDOW, CHUNK, CAPPED, SLOPED, True, WIDEN,
    )  # fmt: skip

    v = tl.arange(0, VALUES)
    stored = real[:, None] & (v < VALUE_DIM)[None, :]
    place = row * out_row + head * out_head
    if not SPLIT:
        if SUNK:
            sink = tl.load(sinks + head, mask=real, other=0.0).to(tl.float32) * 1.4426950408889634
            higher = tl.maximum(peak, sink)
            total = total * tl.exp2(peak - higher) + tl.exp2(sink - higher)
            acc *= tl.exp2(peak - higher)[:, None]
        result = acc / tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(sums + place[:, None] + v[None, :], result.to(sums.dtype.element_ty), mask=stored)
    else:
        part = (row * tl.num_programs(1) * GROUP + head) * splits + split
        tl.store(peaks + part, peak, mask=real)
        tl.store(totals + part, total, mask=real)
        if begin < end:  # what is left unwritten isn't read: its total is 0
            tl.store(sums + (place + split * VALUE_DIM)[:, None] + v[None, :], acc, mask=stored)


@triton.jit
def _go_over(
    acc, peak, total, q, position, slope, keys, values, table, inner, outer, begin, end, low, high,
    key_page, key_token, value_page, value_token,
    KEYS: tl.constexpr, DIM: tl.constexpr, DIMS: tl.constexpr, VALUE_DIM: tl.constexpr, VALUES: tl.constexpr,
    PAGE: tl.constexpr, WINDOW: tl.constexpr, CHUNK: tl.constexpr, CAPPED: tl.constexpr, SLOPED: tl.constexpr,
    MASKED: tl.constexpr, WIDEN: tl.constexpr,
):  # fmt: skip
    """Add the keys [begin, end) to the running softmax; `begin` is a multiple of KEYS."""
    n = tl.arange(0, KEYS)
    d = tl.arange(0, DIMS)
    v = tl.arange(0, VALUES)
    # A block's pages are looked up while the one before is computed: were they in the way of its keys'
    # loads, the compiler would have fewer of those in flight
    upcoming = tl.load(table + (begin + n) // PAGE, mask=begin + n < high, other=0)
    for at in range(begin, end, KEYS):
        token = at + n
        # Pages hold what their last owner left, which may be NaN, and 0 * NaN is NaN: it isn't read
        there = (token >= low) & (token < high)
        page = upcoming.to(tl.int64)
        upcoming = tl.load(table + (token + KEYS) // PAGE, mask=token + KEYS < high, other=0)
        offset = token % PAGE
        k = fetch(
            keys + (page * key_page + offset * key_token)[None, :] + d[:, None],
            there[None, :], (d < DIM)[:, None], MASKED, DIM < DIMS, WIDEN,
        )  # fmt: skip
        score = tl.dot(q, k.to(q.dtype), input_precision="ieee")
        if CAPPED:
            score = 1.0 - 2.0 / (tl.exp2(score * inner) + 1.0)  # tanh
        if SLOPED:
            score = score * outer + slope[:, None] * (token[None, :] - position[:, None])
        if MASKED:
            seen = there[None, :] & (token[None, :] <= position[:, None])
            if WINDOW > 0:
                seen = seen & (token[None, :] > position[:, None] - WINDOW)
            if CHUNK > 0:
                seen = seen & (token[None, :] >= position[:, None] // CHUNK * CHUNK)
            score = tl.where(seen, score, float("-inf"))
        if SLOPED:
            higher = tl.maximum(peak, tl.max(score, 1))
            weight = tl.exp2(score - higher[:, None])
        else:
            higher = tl.maximum(peak, tl.max(score, 1) * outer)
            weight = tl.exp2(score * outer - higher[:, None])
        fade = tl.exp2(peak - higher)
        total = total * fade + tl.sum(weight, 1)
        x = fetch(
            values + (page * value_page + offset * value_token)[:, None] + v[None, :],
            there[:, None], (v < VALUE_DIM)[None, :], MASKED, VALUE_DIM < VALUES, WIDEN,
        )  # fmt: skip
        if WIDEN:
            weight = weight.to(tl.bfloat16)
        acc = tl.dot(weight.to(q.dtype), x.to(q.dtype), acc * fade[:, None], input_precision="ieee")
        peak = higher
    return acc, peak, total


@triton.jit
def fetch(
    pointers, tokens, numbers, MASKED: tl.constexpr, PADDED: tl.constexpr, WIDEN: tl.constexpr
):  # fmt: skip
    """Return what is at pointers, zeros where no token is or, if rows are PADDED, no number."""
    if MASKED and PADDED:
        x = tl.load(pointers, mask=tokens & numbers, other=0.0)
    elif MASKED:
        x = tl.load(pointers, mask=tokens, other=0.0)
    elif PADDED:
        x = tl.load(pointers, mask=numbers, other=0.0)
    else:
        x = tl.load(pointers)
    if WIDEN:
        x = x.to(tl.float32)
    return x


@triton.jit
def _merge(
    sums, peaks, totals, out, sinks, starts, query_blocks, out_row, out_head,
    HEADS: tl.constexpr, SPLITS: tl.constexpr, TILE: tl.constexpr, VALUE_DIM: tl.constexpr,
    VALUES: tl.constexpr, GROUP: tl.constexpr, SUNK: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    await_earlier(OVERLAPS)
    block, head = tl.program_id(0) // TILE, tl.program_id(1)
    sequence = tl.load(query_blocks + block)
    if sequence < 0:
        return
    turn = tl.load(query_blocks + tl.num_programs(0) // TILE + block) + tl.program_id(0) % TILE
    start = tl.load(starts + sequence)
    if turn >= tl.load(starts + sequence + 1) - start:
        return
    row = (start + turn).to(tl.int64)
    s = tl.arange(0, SPLITS)
    v = tl.arange(0, VALUES)
    part = (row * HEADS + head) * SPLITS + s
    total = tl.load(totals + part)
    peak = tl.load(peaks + part)
    highest = tl.max(peak, 0)
    if SUNK:
        sink = tl.load(sinks + head).to(tl.float32) * 1.4426950408889634
        highest = tl.maximum(highest, sink)
    share = tl.exp2(peak - highest)
    whole = tl.sum(total * share, 0)
    if SUNK:
        whole += tl.exp2(sink - highest)
    x = tl.load(
        sums + part[:, None] * VALUE_DIM + v[None, :],
        mask=(total != 0.0)[:, None] & (v < VALUE_DIM)[None, :],
        other=0.0,
    )
    result = tl.sum(x * share[:, None], 0) / tl.where(whole == 0.0, 1.0, whole)
    tl.store(out + row * out_row + head * out_head + v, result.to(out.dtype.element_ty), mask=v < VALUE_DIM)
