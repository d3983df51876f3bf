"""A model of Llama-shaped layers as a few kernels each, over `Ops`: the level `fused` on a device.

A layer is: add and norm, q k v as one linear, rotation and the write to the cache, attention, a linear;
add and norm, gate and up as one linear, the gate, a linear. What the linears of a layer give is added
to the stream by the next norm.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torch.nn.functional import embedding

from inference.gpu.batch import DeviceBatch
from inference.gpu.cache import LayerCache
from inference.gpu.linears import Deadline, DeviceLinear, Multiplier, graph_seconds
from inference.gpu.lora import StackedLowRanks
from inference.gpu.ops import HeadShape, Ops
from inference.kernels.reference import Attention
from inference.models.ends import Factors
from inference.models.norms import Norms
from inference.models.trace import Pair
from inference.quantised.blocks import Blocks

_QKV, _OUT, _GATE_UP, _DOWN = range(4)  # places of a layer's linears, as they are computed


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class DeviceLayer:
    """One layer's weights, in the model's dtype but the norms', and what it does with them."""

    qkv: DeviceLinear  # ((heads + 2 * kv_heads) * dim, hidden)
    out: DeviceLinear
    gate_up: DeviceLinear
    down: DeviceLinear
    norms: Norms
    how: Attention
    heads: int
    kv_heads: int
    dim: int
    activation: str
    residual: float
    interleaved: bool
    rotary: int | None  # which of the stack's rotations; None: nothing is rotated
    low_ranks: tuple[StackedLowRanks | None, ...] = (None,) * 4  # what adapters add to each of the linears

    @property
    def linears(self) -> tuple[DeviceLinear, DeviceLinear, DeviceLinear, DeviceLinear]:
        """Return the linears in the order in which they are computed."""
        return self.qkv, self.out, self.gate_up, self.down

    def run(
        self,
        ops: Ops,
        stream: Tensor,
        pending: Tensor | None,
        batch: DeviceBatch,
        cache: LayerCache,
        tables: Pair | None,
        *,
        trims: bool = False,
    ) -> tuple[Tensor, Tensor]:
        """Return the stream (T, hidden) and what is still to be added to it, by `add`.

        `pending`: the same of the layer before. `trims`: only of the batch's rows; keys and values are
        written of all tokens.
        """
        norms, adapters = self.norms, batch.adapters
        given, stream = self.add(ops, stream, pending, norms.before_attention)
        attended = self._attend(ops, self._multiply(_QKV, given, adapters), batch, cache, tables)
        if trims:
            attended, stream = attended[batch.rows], stream[batch.rows]
            adapters = None if adapters is None else adapters[batch.rows]
            if not len(stream):  # no kernel is launched for nothing
                return stream, stream
        found = self._multiply(_OUT, attended.flatten(1), adapters)
        if norms.after_attention is not None:
            found = ops.rms_norm(found, norms.after_attention, norms.eps)
        given, stream = self.add(ops, stream, found, norms.before_mlp)
        found = self._multiply(_DOWN, self._gate(ops, given, adapters), adapters)
        if norms.after_mlp is not None:
            found = ops.rms_norm(found, norms.after_mlp, norms.eps)
        return stream, found

    def add(
        self, ops: Ops, stream: Tensor, pending: Tensor | None, weight: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Return what the next linear is given, normed if there is a weight for it, and the stream."""
        eps = self.norms.eps
        if weight is None:
            stream = stream if pending is None else torch.add(stream, pending, alpha=self.residual)
            return stream, stream
        if pending is None:
            return ops.rms_norm(stream, weight, eps), stream
        return ops.add_rms_norm(pending, stream, weight, eps, self.residual)

    def _multiply(self, index: int, x: Tensor, adapters: Tensor | None) -> Tensor:
        """Return what one of the linears gives, with what each token's adapter adds."""
        y, stacked = self.linears[index](x), self.low_ranks[index]
        return y if stacked is None or adapters is None else stacked.add(y, x, adapters)

    def _gate(self, ops: Ops, x: Tensor, adapters: Tensor | None) -> Tensor:
        if self.low_ranks[_GATE_UP] is None or adapters is None:
            return self.gate_up.gated(x, self.activation)
        return ops.gated(self._multiply(_GATE_UP, x, adapters), self.activation)

    def _attend(
        self, ops: Ops, qkv: Tensor, batch: DeviceBatch, cache: LayerCache, tables: Pair | None
    ) -> Tensor:
        norms, sizes = self.norms, (self.heads * self.dim, self.kv_heads * self.dim)
        weights = [norms.query, norms.key]
        parts = qkv.split([*sizes, sizes[1]], 1)
        for index, (part, weight) in enumerate(zip(parts, weights, strict=False)):
            if weight is not None and len(weight) != self.dim:  # of all heads together: no part of a head's
                part.copy_(ops.rms_norm(part.contiguous(), weight, norms.eps))
                weights[index] = None
        cosines, sines = tables or (None, None)
        keys, values = cache
        query = ops.rope_and_write(
            qkv,
            cosines,
            sines,
            batch.positions,
            batch.places,
            keys,
            values,
            self.heads,
            self.kv_heads,
            interleaved=self.interleaved,
            query_norm=weights[0],
            key_norm=weights[1],
            eps=norms.eps,
        )
        return ops.paged_attention(query, keys, values, batch, self.how)


@dataclass(frozen=True, slots=True, eq=False)
class DeviceEnds:
    """What is around the layers."""

    table: Tensor  # (vocabulary, hidden)
    norm: Tensor  # (hidden,) float32
    eps: float
    head: DeviceLinear  # its weight is the table if the model ties them
    factors: Factors

    def embed(self, ids: Tensor) -> Tensor:
        """Return the stream (T, hidden) of tokens (T,)."""
        rows = embedding(ids, self.table)
        return rows if self.factors.embedding == 1.0 else rows * self.factors.embedding

    def logits(self, normed: Tensor) -> Tensor:
        """Return (R, vocabulary) of what the last norm gave (R, hidden); in float32 if they are changed."""
        factors = self.factors
        logits = self.head(normed if factors.head == 1.0 else normed * factors.head)
        if factors.logits != 1.0:
            logits = logits.float() * factors.logits
        if factors.cap is not None:
            logits = torch.tanh(logits.float() / factors.cap) * factors.cap
        return logits


class StackModel:
    """The model: a `DeviceModel`."""

    states = None  # its layers keep keys and values

    def __init__(
        self,
        multiply: Multiplier,
        layers: Several[DeviceLayer],
        ends: DeviceEnds,
        caches: Several[LayerCache],
        tables: Several[Pair],
        *,
        trims: bool = True,
    ) -> None:
        self._trims = trims
        self.ops = multiply.ops
        self.device = ends.table.device
        self.dtype = ends.table.dtype
        self._multiply = multiply
        self._layers = tuple(zip(layers, caches, strict=True))
        self._ends = ends
        self._tables = tables
        self._residual = layers[-1].residual
        self.adapts = any(each is not None for layer in layers for each in layer.low_ranks)
        self._heads = HeadShape(
            group=max(layer.heads // layer.kv_heads for layer in layers),
            kv_heads=min(layer.kv_heads for layer in layers),
            dim=max(layer.dim for layer in layers),
            itemsize=self.dtype.itemsize,
        )

    def tile(self, longest: int) -> int:
        """Return how many queries of a sequence one program of attention computes."""
        return self.ops.tile(self._heads, longest)

    def splits(self, sequences: int, longest: int) -> int:
        """Return into how many parts attention cuts the keys."""
        return self.ops.splits(self._heads, sequences, longest)

    def forward(self, batch: DeviceBatch) -> Tensor:
        """Return the logits (R, vocabulary)."""
        ops, ends = self.ops, self._ends
        stream, pending = ends.embed(batch.ids), None
        if batch.images is not None:
            stream[batch.images.at] = batch.images.rows.to(stream)
        for at, (layer, cache) in enumerate(self._layers, start=1):
            tables = None if layer.rotary is None else self._tables[layer.rotary]
            trims = self._trims and at == len(self._layers) and batch.rows is not None
            stream, pending = layer.run(ops, stream, pending, batch, cache, tables, trims=trims)
        assert pending is not None, "a model has layers"
        if batch.rows is not None and not self._trims:
            stream, pending = stream[batch.rows], pending[batch.rows]
        normed, _ = ops.add_rms_norm(pending, stream, ends.norm, ends.eps, self._residual)
        return ends.logits(normed)

    def rehearse(self) -> None:
        """Launch nothing: steps of any size have the same kernels."""

    @torch.inference_mode()
    def warm_up(self, sizes: Several[int]) -> str:
        """Choose how each linear is computed for so many tokens; return the choice as a line."""
        if self.device.type != "cuda":
            return ""
        layers = [layer for layer, _ in self._layers]
        linears = [linear for layer in layers for linear in layer.linears]
        gates = [layer.gate_up for layer in layers]
        self._multiply.tune(
            [*linears, self._ends.head], gates, layers[0].activation, sizes, graph_seconds, Deadline()
        )
        return str(self._multiply)


def widened(layer: DeviceLayer, multiply: Multiplier) -> DeviceLayer:
    """Return the layer in float32 with another multiplier: what it computes, unrounded."""

    def wide(linear: DeviceLinear) -> DeviceLinear:
        bias, weight = None if linear.bias is None else linear.bias.float(), linear.weight
        return DeviceLinear(
            multiply, weight.expand(torch.float32) if isinstance(weight, Blocks) else weight.float(), bias
        )

    qkv, out, gate_up, down = map(wide, layer.linears)
    return replace(layer, qkv=qkv, out=out, gate_up=gate_up, down=down)
