"""Every operation in plain torch: what other kernels are measured by, and what runs without them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import linear

from inference.gpu import noise, shaping, torch_experts, torch_states
from inference.gpu.batch import DeviceBatch, Draws, Sampled
from inference.gpu.mixtures import ExpertWeight, Routing
from inference.gpu.ops import ExpertWay, GatedWay, HeadShape, Way, Weight
from inference.gpu.recurrent import ChannelTokens, HeadTokens, Rule, Runs, Selective, ShortKernel
from inference.gpu.wishes import Wishes
from inference.kernels.gating import ACTIVATIONS, Gating
from inference.kernels.reference import Attention, attend_padded
from inference.kv_cache.blocks import blocks_for
from inference.quantised.blocks import Blocks


class TorchOps:
    """The operations of `Ops`, each computed in float32 and rounded once."""

    captures = False  # attention asks the device how long the sequences are
    invariant = False

    def tile(self, heads: HeadShape, longest: int) -> int:
        """Return one tile a sequence: torch has no programs."""
        return longest

    def splits(self, heads: HeadShape, sequences: int, longest: int) -> int:
        """Return 1."""
        return 1

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return (T, h)."""
        wide = x.float()
        return (wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps) * weight).to(x.dtype)

    def add_rms_norm(
        self, x: Tensor, stream: Tensor, weight: Tensor, eps: float, factor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return what the stream becomes, normed, and the stream, (T, h) each."""
        added = (stream.float() + factor * x.float()).to(stream.dtype)
        return self.rms_norm(added, weight, eps), added

    def rope_and_write(
        self,
        qkv: Tensor,
        cosines: Tensor | None,
        sines: Tensor | None,
        positions: Tensor,
        places: Tensor,
        keys: Tensor,
        values: Tensor,
        heads: int,
        kv_heads: int,
        *,
        interleaved: bool = False,
        query_norm: Tensor | None = None,
        key_norm: Tensor | None = None,
        eps: float = 0.0,
    ) -> Tensor:
        """Return the queries (T, H, D)."""
        parts = qkv.view(len(qkv), heads + 2 * kv_heads, -1)
        query, key, value = parts.split([heads, kv_heads, kv_heads], 1)
        query = query if query_norm is None else self.rms_norm(query, query_norm, eps)
        key = key if key_norm is None else self.rms_norm(key, key_norm, eps)
        if cosines is not None and sines is not None:
            pair = cosines[positions][:, None], sines[positions][:, None]  # (T, 1, rotary)
            query, key = (_rotate(each, *pair, interleaved) for each in (query, key))
        self.write(key, value, places, keys, values)
        return query

    def write(self, key: Tensor, value: Tensor | None, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put keys and values into the cache; -1 is its last place."""
        for cache, new in ((keys, key), (values, value)):
            if new is not None:
                cache.view(-1, *cache.shape[2:])[places] = new.to(cache.dtype)

    def paged_attention(
        self, query: Tensor, keys: Tensor, values: Tensor, batch: DeviceBatch, how: Attention
    ) -> Tensor:
        """Return (T, H, Dv)."""
        if batch.longest == 1:
            return _attend_decodes(query, keys, values, batch, how)
        starts, lengths = batch.starts.tolist(), batch.lengths.tolist()
        parts = []
        for index, (start, stop, length) in enumerate(zip(starts, starts[1:], lengths, strict=False)):
            if length == 0:
                parts.append(query.new_zeros(stop - start, query.shape[1], values.shape[3]))
                continue
            pages = batch.tables[batch.slots[index], : blocks_for(length)]
            k, v = (cache[pages].flatten(0, 1)[None, :length] for cache in (keys, values))
            at = torch.arange(length, device=query.device)
            bias = _bias(at <= at[length - (stop - start) :, None], at, how, query.dtype)
            given = query[start:stop].transpose(0, 1)[None]
            parts.append(attend_padded(given, k, v, bias, how)[0].transpose(0, 1))
        return torch.cat(parts)

    def multiply_heads(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """Return (T, H, N), all heads' products in one call."""
        into = None if out is None else out.transpose(0, 1)
        return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2), out=into).transpose(0, 1)

    def gated(self, gate_up: Tensor, activation: str) -> Tensor:
        """Return (T, I)."""
        gate, up = gate_up.float().chunk(2, -1)
        return (ACTIVATIONS[activation](gate) * up).to(gate_up.dtype)

    def gated_by(self, gate_up: Tensor, gate: Gating) -> Tensor:
        """Return (T, I)."""
        return gate(gate_up)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """Return (M, N); a weight in few bits is expanded."""
        return linear(x, weight.expand(x.dtype) if isinstance(weight, Blocks) else weight, bias)

    def ways(self, rows: int, weight: Weight) -> Iterator[Way]:
        """Return nothing: torch has one way only."""
        return iter(())

    def gated_ways(self, rows: int, weight: Weight) -> Iterator[GatedWay]:
        """Return nothing."""
        return iter(())

    def route(self, index: Tensor, experts: int) -> Routing:
        """Return which experts compute which tokens."""
        return torch_experts.route(index, experts)

    def expert_linear(
        self,
        x: Tensor,
        weight: ExpertWeight,
        routing: Routing,
        gathers: bool,
        gate: Gating | None = None,
    ) -> Tensor:
        """Return (pairs, n), or half of it with a gate, expert by expert."""
        found = torch_experts.multiply(x, weight, routing, gathers)
        return found if gate is None else gate(found)

    def expert_ways(self, tokens: int, chosen: int, weight: ExpertWeight) -> Iterator[ExpertWay]:
        """Return nothing."""
        return iter(())

    def expert_forms(self, chosen: int, weight: ExpertWeight) -> Iterator[ExpertWay]:
        """Return nothing: torch compiles nothing."""
        return iter(())

    def combine(self, found: Tensor, routing: Routing, scores: Tensor) -> Tensor:
        """Return (tokens, n)."""
        return torch_experts.combine(found, routing, scores)

    def find_places(self, batch: DeviceBatch, held: Tensor) -> Runs:
        """Return a step's sequences with the places of their states."""
        return torch_states.find_places(batch, held)

    def move(
        self, states: Tensor, held: Tensor, slots: Tensor, others: Tensor, tokens: Tensor, *, keeps: bool
    ) -> None:
        """Copy states of slots to other places, or back."""
        torch_states.move(states, held, slots, others, tokens, keeps=keeps)

    def convolve(self, x: Tensor, kernel: ShortKernel, recent: Tensor, runs: Runs) -> Tensor:
        """Return (T, channels)."""
        return torch_states.convolve(x, kernel, recent, runs)

    def recur(self, tokens: HeadTokens, rule: Rule, states: Tensor, runs: Runs) -> Tensor:
        """Return (T, values * value_dim)."""
        return torch_states.recur(tokens, rule, states, runs)

    def scan(self, tokens: ChannelTokens, how: Selective, states: Tensor, runs: Runs) -> Tensor:
        """Return (T, channels)."""
        return torch_states.scan(tokens, how, states, runs)

    def sample(self, logits: Tensor, draws: Draws) -> Sampled:
        """Choose a token of each row (R, V)."""
        return noise.sample(logits, draws)

    def shape(self, logits: Tensor, wishes: Wishes, drawn: Tensor) -> None:
        """Choose anew for rows that wish it."""
        shaping.shape(logits, wishes, drawn)


def _rotate(x: Tensor, cosines: Tensor, sines: Tensor, interleaved: bool) -> Tensor:
    """Rotate the first `rotary` numbers of each head (T, heads, D); the rest is passed on."""
    rotary = cosines.shape[-1]
    turned = x[..., :rotary].float()
    if interleaved:
        first, second = turned[..., ::2], turned[..., 1::2]
        across = torch.stack([-second, first], -1).flatten(-2)
    else:
        first, second = turned.chunk(2, -1)
        across = torch.cat([-second, first], -1)
    rotated = (turned * cosines + across * sines).to(x.dtype)
    return torch.cat([rotated, x[..., rotary:]], -1)


def _attend_decodes(
    query: Tensor, keys: Tensor, values: Tensor, batch: DeviceBatch, how: Attention
) -> Tensor:
    pages = max(blocks_for(int(batch.lengths.max())), 1)
    table = batch.tables[batch.slots, :pages]  # (n, pages)
    # Pages hold what their last owner left, which may be NaN, and 0 * NaN is NaN: it must go.
    at = torch.arange(table.shape[1] * keys.shape[1], device=query.device)[None]
    lengths = batch.lengths[:, None]
    k, v = (
        cache[table].flatten(1, 2).masked_fill((at >= lengths)[:, :, None, None], 0.0)
        for cache in (keys, values)
    )
    seen = (at < lengths) & (at >= how.first_seen(lengths - 1))
    seen = seen | (lengths == 0)  # padding sees anything, or it would be divided by nothing
    bias = torch.zeros(seen.shape, dtype=query.dtype, device=query.device).masked_fill(~seen, -torch.inf)
    biases = how.with_slopes(bias[:, None], (at - lengths + 1)[:, None])
    attended = attend_padded(query[:, :, None], k, v, biases, how)[:, :, 0]
    return attended.masked_fill((batch.lengths == 0)[:, None, None], 0.0)


def _bias(seen: Tensor, at: Tensor, how: Attention, dtype: torch.dtype) -> Tensor:
    """Return what is added to a text's scores, of which `seen` (queries, keys) are seen without a window."""
    queries = at[len(at) - len(seen) :, None]
    seen = seen & (at >= how.first_seen(queries))
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill(~seen, -torch.inf)
    return how.with_slopes(bias[None], (at - queries)[None])
