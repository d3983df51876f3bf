"""A whole model of Llama-shaped layers on the C extension: the level `fused`.

The model's own code is traced once. Each layer is rebuilt from its parts and compared with what
the trace saw it do; what is around the layers (a factor on the embedding, the last norm, a factor
or a cap on the logits) is read off the trace too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.anatomy import Variant, read_model, variants
from inference.blocks import blocks_for
from inference.ends import Ends
from inference.kernels.native import Library
from inference.kernels.native_attention import NativeCacheLayer, NativeStep, arrays_of, cache_layers
from inference.kernels.native_layers import Activation, LayerWeights, NativeStack, StackShape
from inference.kernels.native_model import Logits, NativeModel
from inference.layers import LayerParts, Linears, OtherShape
from inference.linears import NativeLinear, NativePack, drop_weight, make_linear
from inference.lora import Adapters
from inference.paged import Probed
from inference.rotary import RopeTable, spread_pairs
from inference.rows import Statistics, statistics
from inference.state import Pieces
from inference.trace import LayerTrace, Rope

_NEAR = 1e-3  # of what a layer adds to the stream, by norm


@dataclass(frozen=True, slots=True)
class Packs:
    """How linears are packed to stay, and how to try a layer exactly."""

    final: NativePack
    exact: NativePack | None  # None: the final form is exact


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A rebuilt layer, without a cache yet."""

    parts: LayerParts
    probed: Probed
    packed: tuple[NativeLinear, ...]  # of the parts' linears
    shape: StackShape
    rope: tuple[Rope, bool] | None  # and whether its tables are to be spread; None: nothing is rotated

    def weights(self, cache: NativeCacheLayer, rotary: int | None) -> LayerWeights:
        """Return what a stack is made of; `rotary`: which of its rotations is this layer's."""
        qkv, out, gate_up, down = (each.packed for each in self.packed)
        norms, how = self.parts.norms, self.probed.how
        return LayerWeights(
            qkv=qkv,
            out=out,
            gate_up=gate_up,
            down=down,
            cache=cache,
            input_norm=norms.before_attention,
            attention_norm=norms.after_attention,
            mid_norm=norms.before_mlp,
            mlp_norm=norms.after_mlp,
            query_norm=norms.query,
            key_norm=norms.key,
            window=how.window,
            scaling=how.scaling,
            sinks=how.sinks,
            rotary=rotary,
        )

    def undo(self) -> None:
        """Put the model's own linears back."""
        for linears, packed in zip(self.parts.linears, self.packed, strict=True):
            _put_back(linears, packed)


class FusedModel:
    """The model's weights, rearranged."""

    def __init__(
        self, model: nn.Module, library: Library, layers: list[Layer], ends: Ends, positions: int
    ) -> None:
        self._model = model
        self._library = library
        self._layers = layers
        self._ends = ends
        self._positions = positions

    def make_runner(
        self,
        blocks: int,
        kv_dtype: torch.dtype,
        adapters: Adapters | None = None,
        *,
        trims: bool = True,
    ) -> FusedRunner:
        """Return what computes the model's steps; its KV cache has so many blocks of float32 or bfloat16.

        Where all linears round what they read, attention over a cache in bfloat16 does, too. `trims`: the
        last layer is computed only of what logits or other tokens' attention depend on.
        """
        ropes: list[tuple[Rope, bool]] = []
        weights: list[LayerWeights] = []
        shapes = [layer.probed.shape for layer in self._layers]
        rounded = all(linear.packed.rounds for linear in self.packed)
        caches = cache_layers(self._library, shapes, blocks, kv_dtype, rounded=rounded)
        for layer, cache in zip(self._layers, caches, strict=True):
            if layer.rope is not None and layer.rope not in ropes:
                ropes.append(layer.rope)
            rotary = None if layer.rope is None else ropes.index(layer.rope)
            weights.append(layer.weights(cache, rotary))
        stack = NativeStack(self._library, weights, self._layers[0].shape)
        if adapters is not None:
            stack.adapt(adapters.of_layers(self._model, [layer.parts for layer in self._layers]))
        model = NativeModel(self._library, stack, self._ends.weights, trims=trims)
        tables = [RopeTable(rope, spread=spread, positions=self._positions) for rope, spread in ropes]
        arrays = arrays_of(caches)
        return FusedRunner(self._library, model, tables, self._ends, arrays, adapts=adapters is not None)

    def screen_head(self) -> None:
        """Have the likeliest tokens found by a coarse copy of the head, if nothing else is asked for."""
        self._ends = self._ends.screened()

    def undo(self) -> None:
        """Put the model's own linears back."""
        for layer in self._layers:
            layer.undo()
        self._ends.undo()

    @property
    def packed(self) -> list[NativeLinear]:
        """Return all packed linears."""
        return [self._ends.head, *(packed for layer in self._layers for packed in layer.packed)]


class FusedRunner:
    """Runs all pieces of a step through the C extension."""

    def __init__(
        self,
        library: Library,
        model: NativeModel,
        ropes: list[RopeTable],
        ends: Ends,
        arrays: tuple[Tensor, ...],
        *,
        adapts: bool = False,
    ) -> None:
        """`arrays` are the cache's, blocks first."""
        self.arrays = arrays
        self._library = library
        self._model = model
        self._adapts = adapts
        self._ropes = ropes
        self._ends = ends
        self._reach = -1  # the last position that the tables of rotations have
        self._rotations: tuple[tuple[Tensor, ...], tuple[Tensor, ...]] = ((), ())
        self._last: Logits | None = None  # as far as their statistics are those of what `run` returned

    def run(self, pieces: Pieces, *, tokens_only: bool = False) -> Tensor:
        """Return the logits, of shape (rows, vocabulary), in float32; with `tokens_only` they mean nothing.

        The likeliest tokens are then what `statistics` says of them, and their log-probabilities are 0.
        """
        step = NativeStep(pieces.starts, pieces.stops, pieces.slots, pieces.table.blocks)
        if step.last > self._reach:
            self._rotate(step.last)
        cosines, sines = self._rotations
        self._last = None  # its memory is free for the next
        finishes = self._ends.finishes
        logits = self._model.run(
            *(pieces.ids, pieces.rows, cosines, sines, step),
            pieces.adapters if self._adapts else None,
            statistics=not finishes,
            tokens_only=tokens_only,
        )
        if finishes:
            with torch.inference_mode():
                return self._ends.finish(logits.values)
        self._last = logits
        return logits.values

    @torch.inference_mode()
    def _rotate(self, last: int) -> None:
        """Have tables of rotations up to a position at least."""
        pairs = [rope.upto(last) for rope in self._ropes]
        self._rotations = tuple(pair[0] for pair in pairs), tuple(pair[1] for pair in pairs)
        self._reach = min((len(cosines) for cosines in self._rotations[0]), default=1 << 62) - 1

    def statistics(self, scores: Tensor) -> Statistics:
        """Return the statistics of scores (n, v), which are known of what `run` returned last."""
        if self._last is None or scores is not self._last.values:
            return statistics(scores, self._library)
        _, tokens, best, totals = self._last
        return Statistics(tokens.copy(), best.astype(np.float64), totals.astype(np.float64))


def fuse_model(
    model: PreTrainedModel,
    probed: dict[nn.Module, Probed],
    library: Library,
    packs: Packs,
    prompt: NDArray[np.int64],
    positions: int,
) -> FusedModel:
    """Rebuild a model whose layers are of Llama's shape; raise OtherShape, with the model as it was.

    `positions`: how many there can be; layers are compared at the last of them.
    """
    anatomy = read_model(model, probed, prompt, positions)
    builders = [
        _Builder(library, packs, each, part, probed[each.attention])
        for each, part in zip(anatomy.layers, anatomy.parts, strict=True)
    ]
    # What a final form rounds can't be taken back: nothing is changed until all layers are known to have
    # the shape. Where it is exact each layer is packed as it is found, as both forms of a model may not fit.
    found = _find(builders)
    layers: Iterable[Layer] = list(found) if packs.exact is not None else found
    built: list[Layer] = []
    try:
        for builder, layer in zip(builders, layers, strict=True):
            built.append(builder.pack(layer))
        ends = anatomy.ends.pack(packs.final)
    except Exception:
        for layer in built:
            layer.undo()
        raise
    return FusedModel(model, library, built, ends, positions)


def _find(builders: list[_Builder]) -> Iterator[Layer]:
    """Yield the layers; raise OtherShape at the first that isn't of the shape, or not of the others'."""
    shape: StackShape | None = None
    variant: Variant | None = None
    for builder in builders:
        layer, variant = builder.find(variant)
        if shape not in (None, layer.shape):
            raise OtherShape("its layers are of several shapes")
        shape = layer.shape
        yield layer


class _Builder:
    """Rebuilds one layer."""

    def __init__(
        self, library: Library, packs: Packs, trace: LayerTrace, parts: LayerParts, probed: Probed
    ) -> None:
        self._library = library
        self._packs = packs
        self._trace = trace
        self._parts = parts
        self._probed = probed

    def find(self, like: Variant | None) -> tuple[Layer, Variant]:
        """Return the layer and how it was found; `like`: what is tried first. The model is as it was.

        Its linears are packed if their final form is exact.
        """
        exact = tuple((self._packs.exact or self._packs.final)(*each) for each in self._joined())
        tried = variants(self._trace, self._parts, like)
        found = next((each for each in tried if self._reproduces(self._layer(exact, each))), None)
        if found is None:
            raise OtherShape("a layer rebuilt from its parts computes something else")
        return self._layer(() if self._packs.exact else exact, found), found

    def pack(self, layer: Layer) -> Layer:
        """Return a layer that was found with its linears packed to stay; the model's own are freed."""
        packed = layer.packed or tuple(self._packs.final(*each) for each in self._joined())
        for group in self._parts.linears:
            for name in group.names:
                drop_weight(group.parent.get_submodule(name))
        return replace(layer, packed=packed)

    def _joined(self) -> list[tuple[Tensor, Tensor | None]]:
        return [group.joined() for group in self._parts.linears]

    def _layer(self, packed: tuple[NativeLinear, ...], variant: Variant) -> Layer:
        parts, shape, tables = self._parts, self._probed.shape, self._trace.tables
        stack_shape = StackShape(
            hidden=self._trace.given.shape[1],
            heads=parts.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.key_dim,
            inner=parts.inner,
            rotary_dim=tables[0].shape[1] if tables is not None else None,
            eps=parts.norms.eps,
            activation=cast(Activation, parts.activation),
            interleaved=variant.rotation.startswith("neighbours"),
            scaling=self._probed.how.scaling,
            softcap=self._probed.how.softcap,
            residual=variant.residual,
        )
        rope, spread = self._trace.rope, variant.rotation.endswith("spread")
        rotated = None if variant.rotation == "none" or rope is None else (rope, spread)
        return Layer(parts, self._probed, packed, stack_shape, rotated)

    def _reproduces(self, layer: Layer) -> bool:
        """Return whether the layer makes of its trace's input what the model's own layer did."""
        trace = self._trace
        tokens = len(trace.given)
        pages = blocks_for(tokens)
        cache = NativeCacheLayer(self._library, layer.probed.shape, pages)
        weights = layer.weights(cache, None if layer.rope is None else 0)
        stack = NativeStack(self._library, [weights], layer.shape)
        table = np.arange(pages, dtype=np.int32)[None, ::-1].copy()
        zero = np.zeros(1, dtype=np.int64)
        step = NativeStep(zero, zero + tokens, zero, table)
        pair = spread_pairs(trace.tables) if layer.rope and layer.rope[1] and trace.tables else trace.tables
        tables = ([], []) if pair is None else ([pair[0]], [pair[1]])
        found = stack.run(trace.given, *tables, step)
        added = (trace.result - trace.given).norm()
        return bool((found - trace.result).norm() <= _NEAR * added)


def _put_back(linears: Linears, packed: NativeLinear) -> None:
    sizes = linears.sizes
    whole = packed.unpack()
    biases = [None] * len(sizes) if whole.bias is None else whole.bias.split(sizes)
    for name, weight, bias in zip(linears.names, whole.weight.split(sizes), biases, strict=True):
        setattr(linears.parent, name, make_linear(weight, bias))
