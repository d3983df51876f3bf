"""Attention over latents (DeepSeek-V2, arXiv:2405.04434, section 2.1): one head of keys that are values, too.

A key is a latent and, behind it, a part that is rotated; the value is the latent. A program has a few
rows, heads of queries, and goes over the keys with a running softmax as `attention` does, but reads a block
of latents once, for scores and for sums alike. All heads share the one head of keys, so that rows are many:
of a query block several programs take them in turn, and what the first reads the others find in the cache.

A latent is taken in two halves, of which a warp reads whole rows: of one piece of 512 numbers a thread
would hold twice as many addresses, and registers are what there is too little of.

Equal bits: as of `attention`. Keys begin at 0 for every program, so that a row's sums depend on its own
sequence, on the `LatentTiles`, and on where its keys are split.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.gpu.batch import DeviceBatch
from inference.kernels.gpu.attention import fetch
from inference.kernels.gpu.interpreter import interpreted
from inference.kernels.gpu.latent_tiles import LEAST_PART, LatentTiles, latent_tiles, latents_fit
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier
from inference.kernels.gpu.tiles import LEAST_ROWS, power_of_two
from inference.kernels.reference import Attention

_LOG2E = 1.4426950408889634
_MERGED = 64  # numbers of a head that a program of the second kernel adds up


def latent_attention(
    query: Tensor,
    keys: Tensor,
    value_dim: int,
    batch: DeviceBatch,
    how: Attention,
    *,
    tiles: LatentTiles | None = None,
    out: Tensor | None = None,
) -> Tensor:
    """Return the attention of a step, (T, H, Dv), in the queries' dtype; raise ValueError if it can't.

    query (T, H, D), keys (blocks, PAGE, 1, D), of any strides but 1 in the last axis: the first
    `value_dim` numbers of a key are its value. The rest is as of `paged_attention`.
    """
    assert query.stride(2) == keys.stride(3) == 1, "heads are contiguous"
    _require(keys, value_dim, how)
    heads, turned = query.shape[1], query.shape[2] - value_dim
    tiles = tiles or latent_tiles(heads, query.element_size(), decodes=batch.longest == 1)
    out = query.new_empty(*query.shape[:2], value_dim) if out is None else out
    split = batch.splits > 1
    sums, peaks, totals = _parts(query, value_dim, batch.splits) if split else (out, None, None)
    assert sums.stride(-1) == out.stride(-1) == 1, "heads of the result are contiguous"
    programs = batch.query_blocks.shape[1]
    shape: dict[str, Any] = {"HEADS": heads, "TILE": batch.tile, "LATENT": value_dim}
    launch(
        _attend_latents, (programs, triton.cdiv(batch.tile * heads, tiles.rows), batch.splits),
        query, keys, sums, peaks, totals,
        batch.tables, batch.slots, batch.starts, batch.lengths, batch.query_blocks, how.scaling * _LOG2E,
        *query.stride()[:2], *keys.stride()[:2], *sums.stride()[:2], batch.tables.stride(0),
        **shape,
        HALF=max(LEAST_ROWS, power_of_two(value_dim) // 2), TURNED=turned,
        TURNS=max(LEAST_ROWS, power_of_two(turned)),
        SPLIT=split, ROWS=tiles.rows, KEYS=tiles.keys, LEAST=LEAST_PART, PAGE=keys.shape[1],
        WIDEN=interpreted() and query.dtype == torch.bfloat16,
        num_warps=tiles.warps, num_stages=tiles.stages, enable_fp_fusion=True,
    )  # fmt: skip
    if split:
        numbers = min(_MERGED, power_of_two(value_dim))
        launch(
            _merge_latents, (programs * batch.tile, heads, triton.cdiv(value_dim, numbers)),
            sums, peaks, totals, out, batch.starts, batch.query_blocks, *out.stride()[:2],
            SPLITS=batch.splits, NUMBERS=numbers, **shape, num_warps=4, enable_fp_fusion=True,
        )  # fmt: skip
    return out


def _require(keys: Tensor, value_dim: int, how: Attention) -> None:
    turned = keys.shape[3] - value_dim
    if keys.shape[2] != 1 or turned <= 0 or not how.is_plain:
        raise ValueError(
            "the kernel of attention over latents takes one head of keys, with a rotated part, and scales "
            "scores alone: start with --latent-cache false"
        )
    if not latents_fit(value_dim, turned, keys.element_size()):
        raise ValueError(
            f"latents of {value_dim} numbers, with {turned} rotated ones, are more than a processor holds: "
            f"start with --latent-cache false"
        )


def _parts(query: Tensor, value_dim: int, splits: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return what parts leave, float32: sums (T, H, splits, Dv), the highest score, the sum of weights."""
    shape = (*query.shape[:2], splits)
    sums = query.new_empty(*shape, value_dim, dtype=torch.float32)
    return sums, query.new_empty(shape, dtype=torch.float32), query.new_empty(shape, dtype=torch.float32)


# Tables are as wide as sequences may be long: they change nothing that is worth to be compiled for
@triton.jit(do_not_specialize=["table_row"])
def _attend_latents(
    query, keys, sums, peaks, totals,
    tables, slots, starts, lengths, query_blocks, factor,
    query_row, query_head, key_page, key_token, out_row, out_head, table_row,
    HEADS: tl.constexpr, TILE: tl.constexpr, LATENT: tl.constexpr, HALF: tl.constexpr,
    TURNED: tl.constexpr, TURNS: tl.constexpr, SPLIT: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr,
    LEAST: tl.constexpr, PAGE: tl.constexpr, WIDEN: tl.constexpr, OVERLAPS: tl.constexpr,
):  # fmt: skip
    await_earlier(OVERLAPS)
    block, part, split = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    splits = tl.num_programs(2)
    sequence = tl.load(query_blocks + block)
    if sequence < 0:
        return
    first = tl.load(query_blocks + tl.num_programs(0) + block)
    start = tl.load(starts + sequence)
    count = tl.load(starts + sequence + 1) - start
    length = tl.load(lengths + sequence)
    past = length - count  # -count in a padding row, which sees no keys then
    if first + part * ROWS // HEADS >= count:  # a sequence's last queries are fewer than a tile
        return

    r = part * ROWS + tl.arange(0, ROWS)
    turn = first + r // HEADS  # which of the sequence's queries
    head = r % HEADS
    real = (r < TILE * HEADS) & (turn < count)
    row = (start + turn).to(tl.int64)
    position = past + turn

    PADDED: tl.constexpr = LATENT < 2 * HALF
    c, d = tl.arange(0, HALF), tl.arange(0, TURNS)
    rows, within, beyond = real[:, None], (c < LATENT)[None, :], (c + HALF < LATENT)[None, :]
    here = query + (row * query_row + head * query_head)[:, None]
    q0 = fetch(here + c[None, :], rows, within, True, PADDED, WIDEN)
    q1 = fetch(here + HALF + c[None, :], rows, beyond, True, PADDED, WIDEN)
    t = fetch(here + LATENT + d[None, :], rows, (d < TURNED)[None, :], True, TURNED < TURNS, WIDEN)

    # Some row sees each of the keys before `high`
    high = tl.minimum(past + first + tl.minimum(TILE, tl.cdiv((part + 1) * ROWS, HEADS)), length)
    size = tl.cdiv(tl.cdiv(high, splits), KEYS) * KEYS
    if SPLIT:
        size = tl.maximum(size, LEAST)
    begin = split * size
    end = tl.minimum(begin + size, high)

    peak = tl.full([ROWS], -1e30, tl.float32)  # of no key yet; not -inf, which would give inf - inf
    total = tl.zeros([ROWS], tl.float32)
    acc0 = tl.zeros([ROWS, HALF], tl.float32)
    acc1 = tl.zeros([ROWS, HALF], tl.float32)
    table = tables + tl.load(slots + sequence).to(tl.int64) * table_row
    n = tl.arange(0, KEYS)
    # A block's pages are looked up while the one before is computed, as in `attention`
    upcoming = tl.load(table + (begin + n) // PAGE, mask=begin + n < high, other=0)
    # What can be computed before the loop, addresses of queries for wide products, would fill all registers
    for at in tl.range(begin, end, KEYS, disable_licm=ROWS >= 64):
        token = at + n
        # Pages hold what their last owner left, which may be NaN, and 0 * NaN is NaN: it isn't read
        there = token < high
        key = keys + upcoming.to(tl.int64) * key_page + token % PAGE * key_token
        upcoming = tl.load(table + (token + KEYS) // PAGE, mask=token + KEYS < high, other=0)
        x0 = fetch(key[:, None] + c[None, :], there[:, None], within, True, PADDED, WIDEN)
        x1 = fetch(key[:, None] + HALF + c[None, :], there[:, None], beyond, True, PADDED, WIDEN)
        turned = fetch(
            key[None, :] + LATENT + d[:, None], there[None, :], (d < TURNED)[:, None],
            True, TURNED < TURNS, WIDEN,
        )  # fmt: skip
        score = tl.dot(t, turned, input_precision="ieee")
        score = tl.dot(q0, tl.trans(x0), score, input_precision="ieee")
        score = tl.dot(q1, tl.trans(x1), score, input_precision="ieee")
        seen = there[None, :] & (token[None, :] <= position[:, None])
        score = tl.where(seen, score, float("-inf"))
        higher = tl.maximum(peak, tl.max(score, 1) * factor)
        weight = tl.exp2(score * factor - higher[:, None])
        fade = tl.exp2(peak - higher)
        total = total * fade + tl.sum(weight, 1)
        if WIDEN:
            weight = weight.to(tl.bfloat16)
        weight = weight.to(x0.dtype)
        acc0 = tl.dot(weight, x0, acc0 * fade[:, None], input_precision="ieee")
        acc1 = tl.dot(weight, x1, acc1 * fade[:, None], input_precision="ieee")
        peak = higher

    place = (row * out_row + head * out_head)[:, None] + c[None, :]
    if not SPLIT:
        whole = tl.where(total == 0.0, 1.0, total)[:, None]
        tl.store(sums + place, (acc0 / whole).to(sums.dtype.element_ty), mask=rows & within)
        tl.store(sums + place + HALF, (acc1 / whole).to(sums.dtype.element_ty), mask=rows & beyond)
    else:
        at = (row * HEADS + head) * splits + split
        tl.store(peaks + at, peak, mask=real)
        tl.store(totals + at, total, mask=real)
        if begin < end:  # what is left unwritten isn't read: its total is 0
            tl.store(sums + place + split * LATENT, acc0, mask=rows & within)
            tl.store(sums + place + split * LATENT + HALF, acc1, mask=rows & beyond)


@triton.jit
def _merge_latents(
    sums, peaks, totals, out, starts, query_blocks, out_row, out_head,
    SPLITS: tl.constexpr, NUMBERS: tl.constexpr, HEADS: tl.constexpr, TILE: tl.constexpr,
    LATENT: tl.constexpr, OVERLAPS: tl.constexpr,
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
    c = tl.program_id(2) * NUMBERS + tl.arange(0, NUMBERS)
    part = (row * HEADS + head) * SPLITS + s
    total = tl.load(totals + part)
    peak = tl.load(peaks + part)
    share = tl.exp2(peak - tl.max(peak, 0))
    whole = tl.sum(total * share, 0)
    x = tl.load(
        sums + part[:, None] * LATENT + c[None, :],
        mask=(total != 0.0)[:, None] & (c < LATENT)[None, :],
        other=0.0,
    )
    result = tl.sum(x * share[:, None], 0) / tl.where(whole == 0.0, 1.0, whole)
    tl.store(out + row * out_row + head * out_head + c, result.to(out.dtype.element_ty), mask=c < LATENT)
