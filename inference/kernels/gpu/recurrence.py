"""Recurrences of layers that keep a state, over packed sequences: gated delta rule, Mamba 2 and Mamba.

A program computes all tokens of one sequence, of one head and some of its values (or of some channels),
whose part of the state stays in its registers from the first token to the last. The numbers of a key lie
side by side, so that a warp adds up what they give without waiting for others. A token's bits depend on
nothing but its sequence, whatever the pieces it is computed in.
Sources: Yang et al. 2024 (arXiv:2412.06464), Dao and Gu 2024 (arXiv:2405.21060), Gu and Dao 2023
(arXiv:2312.00752).
"""

from __future__ import annotations

from typing import Literal

import torch
import triton
import triton.language as tl
from torch import Tensor

from inference.gpu.recurrent import ChannelTokens, HeadTokens, Rule, Runs, Selective
from inference.kernels.gpu.chunked import recur_in_chunks
from inference.kernels.gpu.convolution import from_zero
from inference.kernels.gpu.launching import launch
from inference.kernels.gpu.overlap import await_earlier
from inference.kernels.gpu.shares import share_of, softplus
from inference.kernels.state_parts import Heads

# How tokens are computed: one of each sequence; one after the other, with the same bits in any pieces; or
# many at once, by products of less than 32 bits for numbers of 16
Way = Literal["single", "tokens", "chunks"]

_VALUES = 8  # of a program that computes many tokens
_NUMBERS, _WARP_NUMBERS = 1 << 14, 1 << 11  # of a state, that a program has room for, and one of its warps
_CHANNELS = 32
_NORMED = 2048  # numbers of a program that norms heads


def recur(tokens: HeadTokens, rule: Rule, states: Tensor, runs: Runs, *, way: Way) -> Tensor:
    """Return (T, values * value_dim) in the values' dtype.

    `states` (places, values, value_dim, key_dim) float32 are written; places may lie apart.
    """
    dtype, width = tokens.value.dtype, rule.heads.values * rule.heads.value_dim
    normed = way == "single" and _block(rule.heads, single=True) >= rule.heads.value_dim
    normed_later = tokens.gates is not None and not normed
    wide = torch.float32 if normed_later else dtype
    out = torch.empty((len(tokens.steps), width), dtype=wide, device=tokens.steps.device)
    if way == "chunks":
        recur_in_chunks(tokens, rule, states, runs, out)
    else:
        _one_by_one(tokens, rule, states, runs, out, single=way == "single")
    return _gated(out, tokens.gates, rule, dtype) if normed_later and tokens.gates is not None else out


def _block(heads: Heads, *, single: bool) -> int:
    """Return how many values of a head a program computes: of a single token all, if there is room."""
    width, keys = triton.next_power_of_2(heads.value_dim), triton.next_power_of_2(heads.key_dim)
    return int(min(width, max(_NUMBERS // keys, 1) if single else _VALUES))


def _one_by_one(
    tokens: HeadTokens, rule: Rule, states: Tensor, runs: Runs, out: Tensor, *, single: bool
) -> None:
    heads, query, steps, shares, gates = rule.heads, tokens.query, tokens.steps, tokens.shares, tokens.gates
    keys, block = triton.next_power_of_2(heads.key_dim), _block(heads, single=single)
    launch(
        _recur,
        (len(runs.reads), heads.values, triton.cdiv(heads.value_dim, block)),
        query,
        tokens.key,
        tokens.value,
        steps,
        steps if shares is None else shares,
        steps if gates is None else gates,
        rule.rates,
        rule.step_biases,
        rule.rates if rule.norm is None else rule.norm,
        rule.rates if rule.skips is None else rule.skips,
        states,
        out,
        runs.starts,
        runs.reads,
        runs.writes,
        query.stride(0),
        steps.stride(0),
        0 if shares is None else shares.stride(0),
        0 if gates is None else gates.stride(0),
        states.stride(0),
        heads.values,
        heads.values // heads.keys,
        rule.eps,
        rule.scale,
        float(heads.key_dim) ** -0.5,
        *rule.limits,
        KEY_DIM=heads.key_dim,
        VALUE_DIM=heads.value_dim,
        DELTA=shares is not None,
        NORMED=single and rule.norm is not None and block >= heads.value_dim,
        SKIPS=rule.skips is not None,
        SINGLE=single,
        KEYS=keys,
        BLOCK=block,
        num_warps=min(max(keys * block // _WARP_NUMBERS, 1), 8),
        enable_fp_fusion=True,
    )


def _gated(x: Tensor, gates: Tensor, rule: Rule, dtype: torch.dtype) -> Tensor:
    heads = rule.heads
    out = torch.empty(x.shape, dtype=dtype, device=x.device)
    block = triton.next_power_of_2(heads.value_dim)
    count = max(_NORMED // block, 1)
    launch(
        _norm_and_gate,
        (len(x), triton.cdiv(heads.values, count)),
        x,
        gates,
        rule.norm,
        out,
        gates.stride(0),
        heads.values,
        heads.value_dim,
        rule.eps,
        HEADS=count,
        BLOCK=block,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out


def scan(tokens: ChannelTokens, how: Selective, states: Tensor, runs: Runs) -> Tensor:
    """Return (T, channels) in the dtype of `x`; `states` (places, channels, keys) float32 is written."""
    x, steps, into, by, gates = tokens.x, tokens.steps, tokens.into, tokens.by, tokens.gates
    out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    channels, keys = how.rates.shape
    launch(
        _scan_channels,
        (len(runs.reads), triton.cdiv(channels, _CHANNELS)),
        x,
        steps,
        into,
        by,
        gates,
        how.rates,
        how.step_biases,
        how.skips,
        states,
        out,
        runs.starts,
        runs.reads,
        runs.writes,
        x.stride(0),
        steps.stride(0),
        into.stride(0),
        by.stride(0),
        gates.stride(0),
        states.stride(0),
        channels,
        keys,
        KEYS=triton.next_power_of_2(keys),
        BLOCK=_CHANNELS,
        num_warps=1,
        enable_fp_fusion=True,
    )
    return out


@triton.jit
def _silu(x):
    return x / (1.0 + tl.exp(-x))


@triton.jit
def _go_on(state, query, key, value, stays, comes, unit, DELTA: tl.constexpr):  # fmt: skip
    """Return a state (values, keys) behind a token, and what it gives of the token's query."""
    if DELTA:
        query *= tl.rsqrt(tl.sum(query * query, 0) + 1e-6) * unit
        key *= tl.rsqrt(tl.sum(key * key, 0) + 1e-6)
    known = tl.sum(state * query[None, :], 1)
    new = value
    if DELTA:
        new -= stays * tl.sum(state * key[None, :], 1)
    new *= comes
    return state * stays + new[:, None] * key[None, :], stays * known + new * tl.sum(query * key, 0)


@triton.jit
def _recur(
    query_ptr, key_ptr, value_ptr, steps_ptr, shares_ptr, gates_ptr, rates_ptr, biases_ptr, norm_ptr,
    skips_ptr, states_ptr, out_ptr, starts_ptr, reads_ptr, writes_ptr,
    stride, steps_stride, shares_stride, gates_stride, place_stride, heads, group, eps, scale, unit, least,
    most,
    KEY_DIM: tl.constexpr, VALUE_DIM: tl.constexpr, DELTA: tl.constexpr, NORMED: tl.constexpr,
    SKIPS: tl.constexpr, SINGLE: tl.constexpr, KEYS: tl.constexpr, BLOCK: tl.constexpr,
    OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    run, head = tl.program_id(0), tl.program_id(1)
    at = tl.program_id(2) * BLOCK + tl.arange(0, BLOCK)
    keys = tl.arange(0, KEYS)
    in_values, in_keys = at < VALUE_DIM, keys < KEY_DIM
    inside = in_values[:, None] & in_keys[None, :]
    place = (head * VALUE_DIM + at[:, None]) * KEY_DIM + keys[None, :]
    shared = head // group * KEY_DIM
    await_earlier(OVERLAPS)
    read, write = tl.load(reads_ptr + run).to(tl.int64), tl.load(writes_ptr + run).to(tl.int64)
    if SINGLE:  # of one token each
        first = run.to(tl.int64)
        stop = first + 1
    else:
        first, stop = tl.load(starts_ptr + run).to(tl.int64), tl.load(starts_ptr + run + 1).to(tl.int64)
    kept = states_ptr + read * place_stride + place
    state = tl.load(kept, mask=inside & from_zero(read, keys)[None, :], other=0.0)
    queries, rows = query_ptr + first * stride + shared, key_ptr + first * stride + shared
    values = value_ptr + first * stride + head * VALUE_DIM
    query = tl.load(queries + keys, mask=in_keys, other=0.0).to(tl.float32)
    key = tl.load(rows + keys, mask=in_keys, other=0.0).to(tl.float32)
    value = tl.load(values + at, mask=in_values, other=0.0).to(tl.float32)
    step = tl.load(steps_ptr + first * steps_stride + head).to(tl.float32)
    share = tl.load(shares_ptr + first * shares_stride + head).to(tl.float32)
    rate, bias = tl.load(rates_ptr + head), tl.load(biases_ptr + head)
    skip = 0.0
    if SKIPS:
        skip = tl.load(skips_ptr + head)
    if NORMED:
        norm = tl.load(norm_ptr + at, mask=in_values, other=0.0)
    if SINGLE:
        if NORMED:
            gates = gates_ptr + first * gates_stride + head * VALUE_DIM
            gate = tl.load(gates + at, mask=in_values, other=0.0).to(tl.float32)
        soft, comes = share_of(step + bias, share, scale, least, most, DELTA)
        state, found = _go_on(state, query, key, value, tl.exp(rate * soft), comes, unit, DELTA)
        found += skip * value
        if NORMED:
            found *= tl.rsqrt(tl.sum(found * found, 0) / VALUE_DIM + eps) * norm * _silu(gate)
        target = out_ptr + (first * heads + head) * VALUE_DIM + at
        tl.store(target, found.to(out_ptr.dtype.element_ty), mask=in_values)
    else:
        for t in range(first, stop):
            behind = tl.minimum(t + 1, stop - 1)  # is asked for before it is needed
            queries, rows = query_ptr + behind * stride + shared, key_ptr + behind * stride + shared
            values = value_ptr + behind * stride + head * VALUE_DIM
            next_query = tl.load(queries + keys, mask=in_keys, other=0.0).to(tl.float32)
            next_key = tl.load(rows + keys, mask=in_keys, other=0.0).to(tl.float32)
            next_value = tl.load(values + at, mask=in_values, other=0.0).to(tl.float32)
            next_step = tl.load(steps_ptr + behind * steps_stride + head).to(tl.float32)
            next_share = tl.load(shares_ptr + behind * shares_stride + head).to(tl.float32)
            soft, comes = share_of(step + bias, share, scale, least, most, DELTA)
            state, found = _go_on(state, query, key, value, tl.exp(rate * soft), comes, unit, DELTA)
            found += skip * value
            target = out_ptr + (t * heads + head) * VALUE_DIM + at
            tl.store(target, found.to(out_ptr.dtype.element_ty), mask=in_values)
            query, key, value, step, share = next_query, next_key, next_value, next_step, next_share
    goes = states_ptr + write * place_stride + place
    tl.store(goes, state, mask=inside & from_zero(write, keys)[None, :])


@triton.jit
def _norm_and_gate(
    x_ptr, gates_ptr, norm_ptr, out_ptr, gates_stride, heads, value_dim, eps,
    HEADS: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    row, value = tl.program_id(0).to(tl.int64), tl.arange(0, BLOCK)
    head = tl.program_id(1) * HEADS + tl.arange(0, HEADS)
    inside = (head < heads)[:, None] & (value < value_dim)[None, :]
    at = head[:, None] * value_dim + value[None, :]
    await_earlier(OVERLAPS)
    norm = tl.load(norm_ptr + value, mask=value < value_dim, other=0.0)
    x = tl.load(x_ptr + row * (heads * value_dim) + at, mask=inside, other=0.0)
    gate = tl.load(gates_ptr + row * gates_stride + at, mask=inside, other=0.0).to(tl.float32)
    found = x * tl.rsqrt(tl.sum(x * x, 1) / value_dim + eps)[:, None] * norm[None, :] * _silu(gate)
    tl.store(out_ptr + row * (heads * value_dim) + at, found.to(out_ptr.dtype.element_ty), mask=inside)


@triton.jit
def _scan_channels(
    x_ptr, steps_ptr, into_ptr, by_ptr, gates_ptr, rates_ptr, biases_ptr, skips_ptr, states_ptr, out_ptr,
    starts_ptr, reads_ptr, writes_ptr,
    x_stride, steps_stride, into_stride, by_stride, gates_stride, place_stride, channels, keys,
    KEYS: tl.constexpr, BLOCK: tl.constexpr, OVERLAPS: tl.constexpr,
) -> None:  # fmt: skip
    run = tl.program_id(0)
    at, key = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK), tl.arange(0, KEYS)
    in_channels, in_keys = at < channels, key < keys
    inside = in_channels[:, None] & in_keys[None, :]
    place = at[:, None] * keys + key[None, :]
    await_earlier(OVERLAPS)
    rates = tl.load(rates_ptr + place, mask=inside, other=0.0)
    bias = tl.load(biases_ptr + at, mask=in_channels, other=0.0)
    skip = tl.load(skips_ptr + at, mask=in_channels, other=0.0)
    first, stop = tl.load(starts_ptr + run).to(tl.int64), tl.load(starts_ptr + run + 1).to(tl.int64)
    read, write = tl.load(reads_ptr + run).to(tl.int64), tl.load(writes_ptr + run).to(tl.int64)
    state = tl.load(
        states_ptr + read * place_stride + place, mask=inside & from_zero(read, key)[None, :], other=0.0
    )
    for t in range(first, stop):
        x = tl.load(x_ptr + t * x_stride + at, mask=in_channels, other=0.0).to(tl.float32)
        step = tl.load(steps_ptr + t * steps_stride + at, mask=in_channels, other=0.0).to(tl.float32)
        gate = tl.load(gates_ptr + t * gates_stride + at, mask=in_channels, other=0.0).to(tl.float32)
        into = tl.load(into_ptr + t * into_stride + key, mask=in_keys, other=0.0).to(tl.float32)
        by = tl.load(by_ptr + t * by_stride + key, mask=in_keys, other=0.0).to(tl.float32)
        share = softplus(step + bias)
        state = state * tl.exp(rates * share[:, None]) + (share * x)[:, None] * into[None, :]
        found = (tl.sum(state * by[None, :], 1) + skip * x) * _silu(gate)
        tl.store(out_ptr + t * channels + at, found.to(out_ptr.dtype.element_ty), mask=in_channels)
    tl.store(states_ptr + write * place_stride + place, state, mask=inside & from_zero(write, key)[None, :])
