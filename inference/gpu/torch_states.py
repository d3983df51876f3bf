"""Layers that keep a state, in plain torch: the tokens of all sequences one after the other, in float32."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import silu, softplus

from inference.gpu.batch import DeviceBatch
from inference.gpu.recurrent import LOST, ChannelTokens, HeadTokens, Rule, Runs, Selective, ShortKernel

_LEAST = 1e-6  # is added to what keys and queries are divided by, squared


def find_places(batch: DeviceBatch, held: Tensor) -> Runs:
    """Return a step's sequences with their places, and put down in `held` what these will have read."""
    slots, lengths = batch.slots.long(), batch.lengths
    before = lengths - batch.starts.diff()
    real, begins = lengths > 0, before == 0
    at, known = (held[slots, 0] != before).long(), (held[slots] == before[:, None]).any(1)
    at = torch.where(begins, 1, at)  # then the first place is written to
    kept, others = slots[real], 1 - at[real]
    held[kept, others] = lengths[real]
    held[slots[real & begins], 1] = -1
    reads = torch.where(real & ~begins, torch.where(known, 2 * slots + at, LOST), -1)
    writes = torch.where(real, 2 * slots + 1 - at, -1)
    return Runs.of(batch, reads.int(), writes.int())


def move(states: Tensor, held: Tensor, slots: Tensor, others: Tensor, tokens: Tensor, *, keeps: bool) -> None:
    """Copy states of slots to other places, or back."""
    at, places = slots.long(), others.long()
    if keeps:
        there = (held[at] == tokens[:, None]).any(1)
        states[places] = states[2 * at + (held[at, 0] != tokens)].where(there[:, None], torch.nan)
        return
    states[2 * at] = states[places]
    held[at] = torch.stack([tokens, torch.full_like(tokens, -1)], 1)


def convolve(x: Tensor, kernel: ShortKernel, recent: Tensor, runs: Runs) -> Tensor:
    """Return (T, channels) of (T, channels)."""
    past, out = _begin(recent, runs), torch.empty_like(x, memory_format=torch.contiguous_format)
    for at, rows in _tokens(runs):
        window = torch.cat([past[at], x[rows, None].float()], 1)  # (., taps, channels)
        found = (window * kernel.weight).sum(1)
        found = found if kernel.bias is None else found + kernel.bias
        found = found.masked_fill((runs.reads[at] == LOST)[:, None], torch.nan)
        out[rows] = (silu(found) if kernel.silu else found).to(x.dtype)
        past[at] = window[:, 1:]
    _end(past, recent, runs)
    return out


def recur(tokens: HeadTokens, rule: Rule, states: Tensor, runs: Runs) -> Tensor:
    """Return (T, values * value_dim)."""
    heads, group = rule.heads, rule.heads.values // rule.heads.keys
    rows, steps, shares = (tokens.query, tokens.key, tokens.value), tokens.steps, tokens.shares
    state = _begin(states, runs)
    out = tokens.value.new_empty(len(steps), heads.values, heads.value_dim)
    dims = (heads.key_dim, heads.key_dim, heads.value_dim)
    sizes = (heads.keys * heads.key_dim, heads.keys * heads.key_dim, heads.values * heads.value_dim)
    for at, found in _tokens(runs):
        query, key, value = (
            each[found, :size].float().unflatten(1, (-1, dim))
            for each, size, dim in zip(rows, sizes, dims, strict=True)
        )
        query, key = (each.repeat_interleave(group, 1) for each in (query, key))  # (., values, key_dim)
        soft = softplus(steps[found].float() + rule.step_biases)
        if shares is None:
            share = soft = soft.clamp(*rule.limits)
        else:
            share = rule.scale * shares[found].float().sigmoid()
            query, key = (_of_length_one(each) for each in (query, key))
            query = query * heads.key_dim**-0.5
        now = state[at] * (rule.rates * soft).exp()[..., None, None]  # (., values, value_dim, key_dim)
        new = value if shares is None else value - (now @ key[..., None])[..., 0]
        now = now + (share[..., None] * new)[..., None] * key[..., None, :]
        given = (now @ query[..., None])[..., 0]
        if rule.skips is not None:
            given = given + rule.skips[:, None] * value
        if rule.norm is not None and tokens.gates is not None:
            normed = given * (given.square().mean(-1, keepdim=True) + rule.eps).rsqrt() * rule.norm
            given = normed * silu(tokens.gates[found].float()).view(given.shape)
        out[found] = given.to(out.dtype)
        state[at] = now
    _end(state, states, runs)
    return out.flatten(1)


def scan(tokens: ChannelTokens, how: Selective, states: Tensor, runs: Runs) -> Tensor:
    """Return (T, channels)."""
    x = tokens.x
    state, out = _begin(states, runs), torch.empty_like(x, memory_format=torch.contiguous_format)
    for at, rows in _tokens(runs):
        given, into, by = (each[rows].float() for each in (x, tokens.into, tokens.by))
        share = softplus(tokens.steps[rows].float() + how.step_biases)[..., None]
        now = state[at] * (how.rates * share).exp() + share * given[..., None] * into[:, None]
        found = (now @ by[..., None])[..., 0] + how.skips * given
        out[rows] = (found * silu(tokens.gates[rows].float())).to(x.dtype)
        state[at] = now
    _end(state, states, runs)
    return out


def _of_length_one(x: Tensor) -> Tensor:
    return x * (x.square().sum(-1, keepdim=True) + _LEAST).rsqrt()


def _tokens(runs: Runs) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the sequences that have a first token, a second one, ..., and the rows of these."""
    sizes = runs.starts.diff()
    for index in range(runs.longest):
        at = (sizes > index).nonzero()[:, 0]
        yield at, runs.starts[at].long() + index


def _begin(states: Tensor, runs: Runs) -> Tensor:
    """Return the states (n, ...) that the sequences begin with."""
    kept = states[runs.reads.clamp(min=0).long()]
    return kept.masked_fill((runs.reads < 0).view(-1, *[1] * (states.dim() - 1)), 0.0)


def _end(kept: Tensor, states: Tensor, runs: Runs) -> None:
    real = runs.writes >= 0
    states[runs.writes[real].long()] = kept[real]
