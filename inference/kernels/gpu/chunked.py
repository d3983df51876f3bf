"""The recurrences of heads for many tokens at once: in chunks, whose products tensor cores compute.

Within a chunk the states between its tokens aren't computed: with them left out, what each token adds is
the solution of a triangular system (of the delta rule; Mamba 2's needs none), and all else is products of
matrices. What doesn't depend on the state (the system's inverse, what queries make of the chunk's own keys)
is computed of all chunks at once; then the state goes from one to the next.

The inverse is put together of those of blocks of one token, two, four, ..., so that no number becomes much
larger than the inverse's own. Where chunks begin depends on the step: so do last bits.
Sources: Yang et al. 2024 (arXiv:2406.06484, section 3.2; arXiv:2412.06464, section 3.3), Dao and Gu 2024
(arXiv:2405.21060, section 6).
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.gpu.recurrent import HeadTokens, Rule, Runs
from inference.kernels.gpu.convolution import from_zero
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier
from inference.kernels.gpu.shares import share_of

CHUNK = 16  # tokens, from each sequence's first one in the step
_VALUES = 32  # of a program
_WARPS, _USUAL_KEYS = 4, 128
_SCALES = 4  # numbers of a token: see `_prepare`


def recur_in_chunks(tokens: HeadTokens, rule: Rule, states: Tensor, runs: Runs, out: Tensor) -> None:
    """Write what comes of all tokens to `out` (T, values * value_dim), as `recur` does, not normed."""
    heads, query, key, value = rule.heads, tokens.query, tokens.key, tokens.value
    steps, shares = tokens.steps, tokens.shares
    made = torch.empty((3, len(steps), heads.values, CHUNK), device=steps.device)
    solved, scores, scales = made[0], made[1], made[2, :, :, :_SCALES]
    exact = value.dtype == torch.float32
    keys = max(triton.next_power_of_2(heads.key_dim), 16)
    warps = _WARPS if keys <= _USUAL_KEYS else 2 * _WARPS
    launch(
        _prepare,
        (runs.blocks.shape[1], heads.values),
        query,
        key,
        steps,
        steps if shares is None else shares,
        rule.rates,
        rule.step_biases,
        solved,
        scores,
        scales,
        runs.starts,
        runs.blocks,
        query.stride(0),
        steps.stride(0),
        0 if shares is None else shares.stride(0),
        runs.blocks.stride(0),
        runs.tile,
        heads.values,
        heads.values // heads.keys,
        rule.scale,
        float(heads.key_dim) ** -0.5,
        *rule.limits,
        KEY_DIM=heads.key_dim,
        DELTA=shares is not None,
        PRECISION="ieee" if exact else "tf32x3",
        TOKENS=CHUNK,
        LEVELS=CHUNK.bit_length() - 1,
        KEYS=keys,
        num_warps=warps // 2,
        enable_fp_fusion=True,
    )
    block = max(min(triton.next_power_of_2(heads.value_dim), _VALUES), 16)
    launch(
        _recur_in_chunks,
        (len(runs.reads), heads.values, triton.cdiv(heads.value_dim, block)),
        query,
        key,
        value,
        solved,
        scores,
        scales,
        rule.rates if rule.skips is None else rule.skips,
        states,
        out,
        runs.starts,
        runs.reads,
        runs.writes,
        query.stride(0),
        states.stride(0),
        heads.values,
        heads.values // heads.keys,
        KEY_DIM=heads.key_dim,
        VALUE_DIM=heads.value_dim,
        DELTA=shares is not None,
        SKIPS=rule.skips is not None,
        PRECISION="ieee" if exact else "tf32",
        TOKENS=CHUNK,
        KEYS=keys,
        BLOCK=block,
        num_warps=warps,
        enable_fp_fusion=True,
    )


@triton.jit
def _inverse(below, TOKENS: tl.constexpr, LEVELS: tl.constexpr, PRECISION: tl.constexpr):  # fmt: skip
    """Return the inverse of 1 + `below` (TOKENS, TOKENS), which has numbers below its diagonal alone."""
    at = tl.arange(0, TOKENS)
    found = tl.where(at[:, None] == at[None, :], 1.0, 0.0)
    for level in tl.static_range(LEVELS):
        block = at >> level
        pairs = (block >> 1)[:, None] == (block >> 1)[None, :]
        corner = pairs & (block & 1 == 1)[:, None] & (block & 1 == 0)[None, :]
        between = tl.dot(tl.where(corner, below, 0.0), found, input_precision=PRECISION)
        found -= tl.dot(found, between, input_precision=PRECISION)
    return found


@triton.jit(do_not_specialize=["blocks_stride", "tile"])
def _prepare(
    query_ptr, key_ptr, steps_ptr, shares_ptr, rates_ptr, biases_ptr, solved_ptr, scores_ptr, scales_ptr,
    starts_ptr, blocks_ptr,
    stride, steps_stride, shares_stride, blocks_stride, tile, heads, group, scale, unit, least, most,
    KEY_DIM: tl.constexpr, DELTA: tl.constexpr, PRECISION: tl.constexpr, TOKENS: tl.constexpr,
    LEVELS: tl.constexpr, KEYS: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    head = tl.program_id(1)
    keys, i = tl.arange(0, KEYS), tl.arange(0, TOKENS)
    in_keys = keys < KEY_DIM
    upto, same, before = i[:, None] >= i[None, :], i[:, None] == i[None, :], i[:, None] > i[None, :]
    await_earlier(OVERLAPS)
    run = tl.load(blocks_ptr + tl.program_id(0))
    begins = tl.load(blocks_ptr + blocks_stride + tl.program_id(0))
    start = tl.load(starts_ptr + tl.maximum(run, 0)).to(tl.int64)
    tokens = tl.where(run < 0, 0, tl.load(starts_ptr + tl.maximum(run, 0) + 1) - start)
    rate, bias = tl.load(rates_ptr + head), tl.load(biases_ptr + head)
    columns = i[:, None] * stride + (head // group * KEY_DIM + keys)[None, :]
    # Chunks that begin in the tile are its program's
    for t in range((begins + TOKENS - 1) // TOKENS * TOKENS, tl.minimum(begins + tile, tokens), TOKENS):
        first = start + t
        there = i < tokens - t
        some = there[:, None] & in_keys[None, :]
        query = tl.load(query_ptr + first * stride + columns, mask=some, other=0.0)
        key = tl.load(key_ptr + first * stride + columns, mask=some, other=0.0)
        steps, shares = steps_ptr + (first * steps_stride + head), shares_ptr + (first * shares_stride + head)
        step = tl.load(steps + i * steps_stride, mask=there, other=0.0).to(tl.float32)
        share = tl.load(shares + i * shares_stride, mask=there, other=0.0).to(tl.float32)
        soft, comes = share_of(step + bias, share, scale, least, most, DELTA)
        comes = tl.where(there, comes, 0.0)
        decays = tl.where(there, rate * soft, 0.0)  # logarithms
        reached, whole = tl.cumsum(decays, 0), tl.sum(decays, 0)
        between = tl.where(upto, tl.exp(tl.where(upto, reached[:, None] - reached[None, :], 0.0)), 0.0)
        # Keys and queries are multiplied as they are, and their lengths put in behind: nothing is rounded
        asks, tells = tl.full([TOKENS], 1.0, tl.float32), tl.full([TOKENS], 1.0, tl.float32)
        target = (first + i)[:, None] * (heads * TOKENS) + head * TOKENS + i[None, :]
        if DELTA:
            asked = tl.dot(query, tl.trans(query), input_precision=PRECISION)
            alike = tl.dot(key, tl.trans(key), input_precision=PRECISION)
            asks = tl.rsqrt(tl.sum(tl.where(same, asked, 0.0), 1) + 1e-6) * unit
            tells = tl.rsqrt(tl.sum(tl.where(same, alike, 0.0), 1) + 1e-6)
            alike *= between * (comes * tells)[:, None] * tells[None, :]
            solved = _inverse(tl.where(before, alike, 0.0), TOKENS, LEVELS, PRECISION) * comes[None, :]
            tl.store(solved_ptr + target, solved, mask=there[:, None])
        scores = tl.dot(query, tl.trans(key), input_precision=PRECISION) * between
        tl.store(scores_ptr + target, scores * asks[:, None] * tells[None, :], mask=there[:, None])
        # Of a token: by what its key tells of the state before, by what its query does, and how much of it is
        # left at the chunk's end; and of that state. Where there is no system to solve, first its share
        scales = scales_ptr + (first + i) * (heads * TOKENS) + head * TOKENS
        tl.store(scales, tells * tl.exp(reached) if DELTA else comes, mask=there)
        tl.store(scales + 1, asks * tl.exp(reached), mask=there)
        tl.store(scales + 2, tells * tl.exp(whole - reached), mask=there)
        tl.store(scales + 3, tl.exp(whole) + tl.zeros_like(reached), mask=there)


@triton.jit
def _recur_in_chunks(
    query_ptr, key_ptr, value_ptr, solved_ptr, scores_ptr, scales_ptr, skips_ptr, states_ptr, out_ptr,
    starts_ptr, reads_ptr, writes_ptr,
    stride, place_stride, heads, group,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, DELTA: tl.constexpr, SKIPS: tl.constexpr,
    PRECISION: tl.constexpr, TOKENS: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    run, head = tl.program_id(0), tl.program_id(1)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    keys, i = tl.arange(0, KEYS), tl.arange(0, TOKENS)
    in_values, in_keys = at < VALUE_DIM, keys < KEY_DIM
    inside = in_values[:, None] & in_keys[None, :]
    place = (head * VALUE_DIM + at[:, None]) * KEY_DIM + keys[None, :]
    columns = i[:, None] * stride + (head // group * KEY_DIM + keys)[None, :]
    others = i[:, None] * stride + (head * VALUE_DIM + at)[None, :]
    square = i[:, None] * (heads * TOKENS) + head * TOKENS + i[None, :]
    outs = i[:, None] * (heads * VALUE_DIM) + (head * VALUE_DIM + at)[None, :]
    await_earlier(OVERLAPS)
    read, write = tl.load(reads_ptr + run).to(tl.int64), tl.load(writes_ptr + run).to(tl.int64)
    first, stop = tl.load(starts_ptr + run).to(tl.int64), tl.load(starts_ptr + run + 1).to(tl.int64)
    kept = states_ptr + read * place_stride + place
    state = tl.load(kept, mask=inside & from_zero(read, keys)[None, :], other=0.0)
    for t in range(first, stop, TOKENS):
        there = i < stop - t
        some, these = there[:, None] & in_keys[None, :], there[:, None] & in_values[None, :]
        query = tl.load(query_ptr + t * stride + columns, mask=some, other=0.0).to(tl.float32)
        key = tl.load(key_ptr + t * stride + columns, mask=some, other=0.0).to(tl.float32)
        value = tl.load(value_ptr + t * stride + others, mask=these, other=0.0).to(tl.float32)
        both = there[:, None] & there[None, :]
        scores = tl.load(scores_ptr + t * (heads * TOKENS) + square, mask=both, other=0.0)
        scales = scales_ptr + (t + i) * (heads * TOKENS) + head * TOKENS
        known_by = tl.load(scales, mask=there, other=0.0)
        asked_by = tl.load(scales + 1, mask=there, other=0.0)
        left_by = tl.load(scales + 2, mask=there, other=0.0)
        stays = tl.load(scales_ptr + t * (heads * TOKENS) + head * TOKENS + 3)
        past = tl.trans(state)
        if DELTA:
            solved = tl.load(solved_ptr + t * (heads * TOKENS) + square, mask=both, other=0.0)
            known = tl.dot(key, past, input_precision=PRECISION) * known_by[:, None]
            new = tl.dot(solved, value - known, input_precision=PRECISION)
        else:
            new = value * known_by[:, None]
        found = tl.dot(query, past, input_precision=PRECISION) * asked_by[:, None]
        found += tl.dot(scores, new, input_precision=PRECISION)
        left = tl.trans(new * left_by[:, None])
        state = state * stays + tl.dot(left, key, input_precision=PRECISION)
        if SKIPS:
            found += tl.load(skips_ptr + head) * value
        tl.store(out_ptr + t * (heads * VALUE_DIM) + outs, found.to(out_ptr.dtype.element_ty), mask=these)
    goes = states_ptr + write * place_stride + place
    tl.store(goes, state, mask=inside & from_zero(write, keys)[None, :])
