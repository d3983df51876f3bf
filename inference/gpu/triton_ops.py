"""Triton's kernels as `Ops`. The only module of this package that needs Triton."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache, partial

import torch
from torch import Tensor
from torch.nn.functional import linear

from inference.gpu.batch import DeviceBatch, Draws, Sampled
from inference.gpu.mixtures import ExpertWeight, Routing
from inference.gpu.ops import ExpertWay, GatedWay, HeadShape, Way, Weight
from inference.gpu.recurrent import ChannelTokens, HeadTokens, Rule, Runs, Selective, ShortKernel
from inference.gpu.wishes import Wishes
from inference.kernels.gating import Gating
from inference.kernels.gpu import activation as gates
from inference.kernels.gpu import attention, norm, places, recurrence, rope, sampling, shaping
from inference.kernels.gpu.convolution import convolve
from inference.kernels.gpu.expert_linear import expert_linear
from inference.kernels.gpu.expert_tiles import ExpertTile, expert_tiles, fixed_tile, preferred_tiles
from inference.kernels.gpu.gated_linear import gated_linear, gated_tiles
from inference.kernels.gpu.invariant import invariant_heads, invariant_linear
from inference.kernels.gpu.latent import latent_attention
from inference.kernels.gpu.latent_tiles import fixed_latent_tiles, latent_splits, latent_tile
from inference.kernels.gpu.launching import overlap_kernels
from inference.kernels.gpu.linear import MOST_ROWS, Tile, small_linear, tiles
from inference.kernels.gpu.quantised_linear import MOST_ROWS as MOST_QUANTISED_ROWS
from inference.kernels.gpu.quantised_linear import expand_blocks, quantised_linear, quantised_tiles
from inference.kernels.gpu.routing import combine, route
from inference.kernels.gpu.split_linear import split_linear, splits
from inference.kernels.gpu.tiles import deterministic_tiles, key_splits, query_tile
from inference.kernels.reference import Attention
from inference.quantised.blocks import BLOCK, Blocks


class TritonOps:
    """The operations of `Ops`; linears by cuBLAS, or in one order of sums for all batches."""

    captures = True

    def __init__(self, *, deterministic: bool, overlaps: bool) -> None:
        self._deterministic = deterministic
        overlap_kernels(wanted=overlaps)
        _try_compiler()

    @property
    def invariant(self) -> bool:
        """Return whether it was asked for."""
        return self._deterministic

    def tile(self, heads: HeadShape, longest: int) -> int:
        """Return the queries of one program."""
        if heads.latent:
            return latent_tile(
                heads.group, longest, itemsize=heads.itemsize, deterministic=self._deterministic
            )
        return query_tile(
            heads.group * heads.kv_heads,
            heads.kv_heads,
            longest,
            dim=heads.dim,
            itemsize=heads.itemsize,
            deterministic=self._deterministic,
        )

    def splits(self, heads: HeadShape, sequences: int, longest: int) -> int:
        """Return 1 but for decodes that wouldn't fill the device."""
        if self._deterministic or longest > 1:
            return 1
        if heads.latent:
            return latent_splits(sequences, heads.group, _processors(), itemsize=heads.itemsize)
        return key_splits(sequences, heads.kv_heads, _processors(), dim=heads.dim, itemsize=heads.itemsize)

    def rms_norm(self, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        """Return (T, h)."""
        return norm.rms_norm(x, weight, eps)

    def add_rms_norm(
        self, x: Tensor, stream: Tensor, weight: Tensor, eps: float, factor: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return what the stream becomes, normed, and the stream, (T, h) each."""
        return norm.add_rms_norm(x, stream, weight, eps, factor)

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
        return rope.rope_and_write(
            qkv,
            cosines,
            sines,
            positions,
            places,
            keys,
            values,
            heads,
            kv_heads,
            interleaved=interleaved,
            query_norm=query_norm,
            key_norm=key_norm,
            eps=eps,
        )

    def write(self, key: Tensor, value: Tensor | None, places: Tensor, keys: Tensor, values: Tensor) -> None:
        """Put keys and values into the cache."""
        rope.write(key, value, places, keys, values)

    def paged_attention(
        self, query: Tensor, keys: Tensor, values: Tensor, batch: DeviceBatch, how: Attention
    ) -> Tensor:
        """Return (T, H, Dv)."""
        if how.latent:
            exact = fixed_latent_tiles(query.element_size()) if self._deterministic else None
            return latent_attention(query, keys, values.shape[3], batch, how, tiles=exact)
        fixed = None
        if self._deterministic:
            fixed = deterministic_tiles(max(query.shape[2], values.shape[3]), query.element_size())
        return attention.paged_attention(query, keys, values, batch, how, tiles=fixed)

    def multiply_heads(self, x: Tensor, weight: Tensor, out: Tensor | None = None) -> Tensor:
        """Return (T, H, N), by cuBLAS or in one order of sums."""
        if self._deterministic:
            return invariant_heads(x if x.stride(2) == 1 else x.contiguous(), weight, out=out)
        into = None if out is None else out.transpose(0, 1)
        return torch.bmm(x.transpose(0, 1), weight.transpose(1, 2), out=into).transpose(0, 1)

    def gated(self, gate_up: Tensor, activation: str) -> Tensor:
        """Return (T, I)."""
        return gates.gated(gate_up, activation)

    def gated_by(self, gate_up: Tensor, gate: Gating) -> Tensor:
        """Return (T, I)."""
        return gates.gated(gate_up, gate.activation) if gate.is_plain else gates.gated_by(gate_up, gate)

    def linear(self, x: Tensor, weight: Weight, bias: Tensor | None) -> Tensor:
        """Return (M, N); a weight in few bits is expanded, for as long as it takes."""
        numbers = expand_blocks(weight, x.dtype) if isinstance(weight, Blocks) else weight
        return invariant_linear(x, numbers, bias) if self._deterministic else linear(x, numbers, bias)

    def ways(self, rows: int, weight: Weight) -> Iterator[Way]:
        """Yield kernels that read few bits; or that for few rows, and cuBLAS in parts for more of them.

        None if one order of sums is asked for.
        """
        if self._deterministic:
            return
        outputs, inner = weight.shape
        if isinstance(weight, Blocks):
            yield from _ways_of_blocks(rows, weight)
        elif rows > MOST_ROWS:
            for parts in splits(rows, outputs, inner, weight.dtype, _processors()):
                yield Way(f"cuBLAS in {parts} parts", partial(split_linear, parts=parts))
        else:
            for tile in tiles(rows, outputs, inner, weight.dtype, _processors()):
                yield Way(_name(tile), partial(small_linear, tile=tile))

    def gated_ways(self, rows: int, weight: Weight) -> Iterator[GatedWay]:
        """Yield the kernel for few rows that has the gate in it."""
        if self._deterministic or rows > MOST_ROWS or isinstance(weight, Blocks):
            return
        outputs, inner = weight.shape
        for tile in gated_tiles(rows, outputs // 2, inner, weight.dtype, _processors()):
            yield GatedWay(f"{_name(tile)} with the gate", partial(gated_linear, tile=tile))

    def route(self, index: Tensor, experts: int) -> Routing:
        """Return which experts compute which tokens; a single token's are left as they come."""
        if len(index) == 1 and not self._deterministic:
            return Routing(index.contiguous(), experts)
        return route(index, experts)

    def expert_linear(
        self,
        x: Tensor,
        weight: ExpertWeight,
        routing: Routing,
        gathers: bool,
        gate: Gating | None = None,
    ) -> Tensor:
        """Return (pairs, n), or half of it with a gate."""
        tile = fixed_tile(weight)
        if not self._deterministic:
            tile = next(expert_tiles(len(routing.index), routing.chosen, weight, _processors()))
        return expert_linear(x, weight, routing, gathers, gate, tile=tile)

    def expert_ways(self, tokens: int, chosen: int, weight: ExpertWeight) -> Iterator[ExpertWay]:
        """Yield the same in other tiles."""
        if not self._deterministic:
            _, *others = expert_tiles(tokens, chosen, weight, _processors())
            yield from map(_expert_way, others)

    def expert_forms(self, chosen: int, weight: ExpertWeight) -> Iterator[ExpertWay]:
        """Yield it in the tiles of any number of tokens."""
        if self._deterministic:
            yield _expert_way(fixed_tile(weight))
        else:
            yield from map(_expert_way, preferred_tiles(chosen, weight, _processors()))

    def combine(self, found: Tensor, routing: Routing, scores: Tensor) -> Tensor:
        """Return (tokens, n)."""
        return combine(found, routing, scores)

    def find_places(self, batch: DeviceBatch, held: Tensor) -> Runs:
        """Return a step's sequences with the places of their states."""
        reads, writes = places.find_places(batch.slots, batch.starts, batch.lengths, held)
        return Runs.of(batch, reads, writes)

    def move(
        self, states: Tensor, held: Tensor, slots: Tensor, others: Tensor, tokens: Tensor, *, keeps: bool
    ) -> None:
        """Copy states of slots to other places, or back."""
        places.move(states, held, slots, others, tokens, keeps=keeps)

    def convolve(self, x: Tensor, kernel: ShortKernel, recent: Tensor, runs: Runs) -> Tensor:
        """Return (T, channels)."""
        return convolve(x, kernel, recent, runs)

    def recur(self, tokens: HeadTokens, rule: Rule, states: Tensor, runs: Runs) -> Tensor:
        """Return (T, values * value_dim)."""
        way: recurrence.Way = "chunks"
        if self._deterministic or (runs.longest > 1 and tokens.value.dtype == torch.float32):
            way = "tokens"
        elif runs.longest == 1:
            way = "single"
        return recurrence.recur(tokens, rule, states, runs, way=way)

    def scan(self, tokens: ChannelTokens, how: Selective, states: Tensor, runs: Runs) -> Tensor:
        """Return (T, channels)."""
        return recurrence.scan(tokens, how, states, runs)

    def sample(self, logits: Tensor, draws: Draws) -> Sampled:
        """Choose a token of each row (R, V)."""
        return sampling.sample(logits, draws)

    def shape(self, logits: Tensor, wishes: Wishes, drawn: Tensor) -> None:
        """Choose anew for rows that wish it."""
        shaping.shape(logits, wishes, drawn)


def _ways_of_blocks(rows: int, weight: Blocks) -> Iterator[Way]:
    if rows > MOST_QUANTISED_ROWS:
        return
    for tile in quantised_tiles(rows, weight, _processors()):
        size = f"{tile.outputs}x{tile.blocks * BLOCK}/{tile.parts}"
        yield Way(
            f"{weight.bits} bits in {size}, {tile.stages} in flight", partial(quantised_linear, tile=tile)
        )


def _expert_way(tile: ExpertTile) -> ExpertWay:
    name = f"experts {tile.outputs}x{tile.inner} for {tile.rows}, {tile.stages} in flight"
    return ExpertWay(name, partial(expert_linear, tile=tile))


def _name(tile: Tile) -> str:
    return f"Triton {tile.outputs}x{tile.inner}/{tile.parts}, {tile.stages} in flight"


def _try_compiler() -> None:
    """Raise ImportError if Triton is there and can't compile, or what it compiles doesn't run."""
    if not torch.cuda.is_available():
        return
    x = torch.ones(2, 16, device="cuda")
    try:
        norm.rms_norm(x, x[0], 0.0)
        torch.cuda.synchronize()
    except Exception as error:  # no C compiler, no header files, an older driver, ...
        raise ImportError(f"it can't compile: {type(error).__name__}: {error}") from error


@lru_cache
def _processors() -> int:
    return torch.cuda.get_device_properties().multi_processor_count if torch.cuda.is_available() else 1
