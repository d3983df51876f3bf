"""A model's layers rebuilt as a device's stack, each compared with what the model's own code computes."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers import PreTrainedModel

from inference.gpu.batch import DeviceBatch
from inference.gpu.cache import device_cache
from inference.gpu.linears import Multiplier, SwappedLinear, device_linear, plain_linear
from inference.gpu.lora import stack_low_ranks
from inference.gpu.ops import torch_ops
from inference.gpu.stack import DeviceEnds, DeviceLayer, StackModel, widened
from inference.kv_cache.blocks import PAGE, blocks_for
from inference.models.anatomy import Variant, read_model, variants
from inference.models.ends import Bare
from inference.models.layers import LayerParts, OtherShape
from inference.models.linears import drop_weight, weight_and_bias
from inference.models.lora import Adapters
from inference.models.paged import LayerShape, Probed
from inference.models.rotary import RopeTable, spread_pairs
from inference.models.trace import LayerTrace, Pair, Rope, eager_attention, in_float32
from inference.quantised.blocks import Blocks

_NEAR = 1e-3  # of what a layer adds to the stream, by norm, in float32


@dataclass(frozen=True, slots=True, eq=False)
class Rebuilt:
    """A layer whose linears are merged, the model's own being without weights."""

    parts: LayerParts
    layer: DeviceLayer
    shape: LayerShape

    def undo(self) -> None:
        """Put the model's own linears back: views of the merged ones."""
        for linears, merged in zip(self.parts.linears, self.layer.linears, strict=True):
            sizes = linears.sizes
            biases = [None] * len(sizes) if merged.bias is None else merged.bias.split(sizes)
            for name, weight, bias in zip(linears.names, merged.weight.split(sizes), biases, strict=True):
                setattr(linears.parent, name, plain_linear(weight, bias))


class Stack:
    """The model's weights, rearranged."""

    def __init__(
        self, multiply: Multiplier, layers: list[Rebuilt], ropes: list[RopeTable], ends: DeviceEnds
    ) -> None:
        self._multiply = multiply
        self._layers = layers
        self._ropes = ropes
        self._ends = ends

    def adapt(self, model: nn.Module, adapters: Adapters) -> None:
        """Have the layers add what adapters do."""
        several = adapters.of_layers(model, [each.parts for each in self._layers])
        for at, rebuilt in enumerate(self._layers):
            layer = rebuilt.layer
            low_ranks = tuple(
                stack_low_ranks(
                    [each[at * len(layer.linears) + index] for each in several],
                    *(linear.outputs, self._multiply, self._ends.table),
                )
                for index, linear in enumerate(layer.linears)
            )
            self._layers[at] = replace(rebuilt, layer=replace(layer, low_ranks=low_ranks))

    def make_model(self, blocks: int, positions: int, *, trims: bool = True) -> StackModel:
        """Return what computes steps over a cache of so many blocks, up to so many positions.

        `trims`: the last layer is computed only of what logits or other tokens' attention depend on.
        """
        table = self._ends.table
        shapes = [each.shape for each in self._layers]
        caches = device_cache(shapes, blocks, table.dtype, table.device)
        tables = [rope.upto(positions - 1) for rope in self._ropes]
        layers = [each.layer for each in self._layers]
        return StackModel(self._multiply, layers, self._ends, caches, tables, trims=trims)

    @property
    def packed(self) -> tuple[SwappedLinear, ...]:
        """Return the layers' linears that are in few bits."""
        linears = [linear for each in self._layers for linear in each.layer.linears]
        return tuple(SwappedLinear(each) for each in linears if isinstance(each.weight, Blocks))

    def undo(self) -> None:
        """Put the model's own linears back."""
        _undo_all(self._layers)


def build_stack(
    model: PreTrainedModel,
    probed: dict[nn.Module, Probed],
    multiply: Multiplier,
    dtype: torch.dtype,
    prompt: NDArray[np.int64],
    positions: int,
) -> Stack:
    """Return a model's layers as a stack that computes in `dtype`; raise OtherShape, the model as it was.

    A layer's linears are merged and its own freed before the next one's, so that the memory isn't
    doubled. `positions`: how many there can be.
    """
    anatomy = read_model(model, probed, prompt, positions, llamas=True)
    built: list[Rebuilt] = []
    ropes: list[tuple[Rope, bool]] = []
    variant: Variant | None = None
    try:
        with torch.no_grad(), eager_attention(model):
            for trace, parts in zip(anatomy.layers, anatomy.parts, strict=True):
                builder = _Builder(multiply, dtype, trace, parts, probed[trace.attention])
                variant = builder.find(variant)
                rope = builder.rope(variant)
                if rope is not None and rope not in ropes:
                    ropes.append(rope)
                built.append(builder.build(variant, None if rope is None else ropes.index(rope)))
    except Exception:
        _undo_all(built)
        raise
    tables = [RopeTable(rope, spread=spread, positions=positions) for rope, spread in ropes]
    return Stack(multiply, built, tables, _ends(anatomy.ends, multiply, dtype))


def _undo_all(layers: list[Rebuilt]) -> None:
    """Put the model's own linears back, forgetting each layer: of few bits they are no views, but others."""
    while layers:
        layers.pop().undo()


class _Builder:
    """Rebuilds one layer."""

    def __init__(
        self,
        multiply: Multiplier,
        dtype: torch.dtype,
        trace: LayerTrace,
        parts: LayerParts,
        probed: Probed,
    ) -> None:
        self._trace = trace
        self._parts = parts
        self._probed = probed
        self._linears = [device_linear(multiply, dtype, *group.numbers()) for group in parts.linears]

    def find(self, like: Variant | None) -> Variant:
        """Return what reproduces the layer, trying `like` first; raise OtherShape."""
        trace = in_float32(self._trace)
        added = (trace.result - trace.given).norm()
        for each in variants(trace, self._parts, like, llamas=True):
            rotary = None if self.rope(each) is None else 0
            if (self._run(trace, each, rotary) - trace.result).norm() <= _NEAR * added:
                return each
        raise OtherShape("a layer rebuilt from its parts computes something else")

    def rope(self, variant: Variant) -> tuple[Rope, bool] | None:
        """Return the layer's rotation, and whether its tables are to be spread; None: there is none."""
        rope = self._trace.rope
        if variant.rotation == "none" or rope is None:
            return None
        return rope, variant.rotation.endswith("spread")

    def build(self, variant: Variant, rotary: int | None) -> Rebuilt:
        """Return the layer, and free the model's own weights."""
        for group in self._parts.linears:
            for name in group.names:
                drop_weight(group.parent.get_submodule(name))
        return Rebuilt(self._parts, self._layer(variant, rotary), self._probed.shape)

    def _layer(self, variant: Variant, rotary: int | None) -> DeviceLayer:
        qkv, out, gate_up, down = self._linears
        return DeviceLayer(
            qkv=qkv,
            out=out,
            gate_up=gate_up,
            down=down,
            norms=self._parts.norms,
            how=self._probed.how,
            heads=self._parts.heads,
            kv_heads=self._probed.shape.kv_heads,
            dim=self._probed.shape.key_dim,
            activation=self._parts.activation,
            residual=variant.residual,
            interleaved=variant.rotation.startswith("neighbours"),
            rotary=rotary,
        )

    def _run(self, trace: LayerTrace, variant: Variant, rotary: int | None) -> Tensor:
        """Return what the rebuilt layer makes, in float32 and by torch, of what its trace was given."""
        ops = torch_ops()
        layer = widened(self._layer(variant, rotary), Multiplier(ops))
        batch = _one_prompt(len(trace.given), trace.given.device)
        (cache,) = device_cache([self._probed.shape], len(batch.tables[0]), torch.float32, trace.given.device)
        tables: Pair | None = None
        if rotary is not None and trace.tables is not None:
            tables = spread_pairs(trace.tables) if variant.rotation.endswith("spread") else trace.tables
        return layer.add(ops, *layer.run(ops, trace.given, None, batch, cache, tables), None)[1]


def _ends(bare: Bare, multiply: Multiplier, dtype: torch.dtype) -> DeviceEnds:
    head, table = bare.model.get_output_embeddings(), bare.model.get_input_embeddings()
    linear = device_linear(multiply, dtype, *weight_and_bias(head))
    tied = head.weight is table.weight
    same = linear.weight if tied else table.weight.detach().to(dtype)
    assert isinstance(same, Tensor), "heads aren't kept in few bits"
    return DeviceEnds(same, bare.norm, bare.eps, linear, bare.factors)


def _one_prompt(tokens: int, device: torch.device) -> DeviceBatch:
    """Return a step of one prompt, in pages out of order; the tables of its rotations begin with it."""
    pages = torch.arange(blocks_for(tokens) - 1, -1, -1, device=device)
    positions = torch.arange(tokens, device=device)
    return DeviceBatch(
        ids=positions,
        positions=positions,
        places=pages[positions // PAGE] * PAGE + positions % PAGE,
        tables=pages[None].int(),
        slots=torch.zeros(1, dtype=torch.int32, device=device),
        starts=torch.tensor([0, tokens], dtype=torch.int32, device=device),
        lengths=torch.tensor([tokens], dtype=torch.int32, device=device),
        query_blocks=torch.zeros(2, 1, dtype=torch.int32, device=device),
        tile=tokens,
        rows=None,
        longest=tokens,
        splits=1,
    )
