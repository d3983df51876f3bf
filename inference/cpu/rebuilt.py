"""Decoder layers of known shapes rebuilt on the C extension, and compared with what the model's own did."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np
from torch import nn

from inference.cpu.experts import NativeExperts
from inference.cpu.latents import PackedLatents
from inference.cpu.packed import Mixture, Packed, Packs
from inference.cpu.putting_back import put_back, put_one_back
from inference.kernels.native import Library, PackedLinear
from inference.kernels.native_adapters import Linears as AdapterLinears
from inference.kernels.native_attention import NativeCacheLayer, NativeStep
from inference.kernels.native_experts import ExpertsMemory
from inference.kernels.native_layers import Activation, LayerWeights, NativeStack, StackShape
from inference.kernels.native_per_layer import PerLayerWeights
from inference.kernels.native_state import NativeRuns
from inference.kernels.native_state_layers import NativeStateLayer
from inference.kernels.reference import Attention
from inference.kv_cache.blocks import blocks_for
from inference.models.anatomy import Variant, variants
from inference.models.borrowed import borrowed
from inference.models.layers import LayerParts, OtherShape
from inference.models.linears import NativePack, drop_weight
from inference.models.paged import Probed
from inference.models.per_layer import own_inputs
from inference.models.rotary import arranged
from inference.models.share import LayerShare
from inference.models.trace import LayerTrace, Rope

_NEAR = 1e-3  # of what a layer adds to the stream, by norm


@dataclass(frozen=True, slots=True, eq=False)
class Layer:
    """A rebuilt layer, without a cache yet."""

    parts: LayerParts
    probed: Probed | None  # None: it keeps a state, or mixes no tokens
    packed: Packed | None  # None: not yet
    shape: StackShape
    rope: tuple[Rope, str] | None  # and how heads are rotated by it; None: they aren't
    share: LayerShare | None = None  # None: it is whole
    parallel: bool = False  # attention and the MLP are beside each other
    late_norms: bool = False  # queries and keys are normalised once they are rotated

    @property
    def mixer(self) -> nn.Module | None:
        """Return what mixes its tokens."""
        return None if self.parts.qkv is None else self.parts.qkv.parent

    @property
    def keeper(self) -> nn.Module | None:
        """Return the attention module whose keys and values it attends to."""
        if self.probed is None:
            return None
        return self.mixer if self.probed.borrows is None else self.probed.borrows

    @property
    def keeps(self) -> bool:
        """Return whether it has a cache of its own."""
        return self.probed is not None and self.probed.borrows is None

    def weights(
        self, past: NativeCacheLayer | NativeStateLayer | None, rotary: int | None, first: int = 0
    ) -> LayerWeights:
        """Return what a stack is made of.

        `rotary`: which of its rotations is this layer's. `first`: where in a row of all layers' inputs its
        own begin.
        """
        assert self.packed is not None, "it is packed"
        packed, mixture = iter(self.packed.linears), self.packed.mixture
        latents = self.packed.latents
        linears: list[PackedLinear | None] = [
            None if each is None else next(packed).packed for each in self.parts.places
        ]
        qkv, out, gate_up, down = linears
        norms, how = self.parts.norms, Attention(scaling=1.0) if self.probed is None else self.probed.how
        shares_norm = self.parallel and norms.before_mlp is None
        return LayerWeights(
            qkv=qkv,
            out=out,
            gate_up=gate_up,
            down=down,
            mixture=None if mixture is None else mixture.weights,
            cache=past if isinstance(past, NativeCacheLayer) else None,
            state=past if isinstance(past, NativeStateLayer) else None,
            latent=None if latents is None else latents.layer,
            gated=self.parts.gated,
            input_norm=norms.before_attention,
            attention_norm=norms.after_attention,
            mid_norm=norms.before_attention if shares_norm else norms.before_mlp,
            mlp_norm=norms.after_mlp,
            query_norm=norms.query,
            key_norm=norms.key,
            attended_norm=norms.attended,
            inner_norm=norms.inner,
            window=how.window,
            chunk=how.chunk,
            scaling=how.scaling * self.parts.factor,
            sinks=how.sinks,
            slopes=how.slopes,
            rotary=rotary,
            parallel=self.parallel,
            rotary_dim=self.shape.rotary_dim,
            borrows=self.parts.borrows,
            value_norm=norms.value,
            per_layer=self._per_layer(first),
            scale=self.parts.scale,
            late_norms=self.late_norms,
            query_scales=self.parts.query_scales,
            xielu=self.parts.xielu,
        )

    def _per_layer(self, first: int) -> PerLayerWeights | None:
        own = self.parts.per_layer
        if own is None or self.packed is None:
            return None
        gate, projection = (each.packed for each in self.packed.per_layer)
        return PerLayerWeights(gate=gate, projection=projection, norm=own.norm, first=first)

    def low_ranks(self, adapter: AdapterLinears) -> AdapterLinears:
        """Return what of an adapter's low ranks for each of the layer's linears this process adds."""
        if self.share is None:
            return adapter
        return [self.share.low_ranks(*each) for each in enumerate(adapter)]

    def undo(self) -> None:
        """Put the model's own linears back; of a share nothing can be."""
        if self.share is not None:
            return
        assert self.packed is not None, "it is packed"
        for linears, packed in zip(self.parts.linears, self.packed.linears, strict=True):
            put_back(linears, packed)
        for kept, linear in self.parts.kept:
            put_one_back(kept, linear)
        if self.parts.per_layer is not None:
            for linears, packed in zip(self.parts.per_layer.linears, self.packed.per_layer, strict=True):
                put_back(linears, packed)
        if self.packed.mixture is not None:
            self.packed.mixture.experts.restore()
        if self.packed.latents is not None:
            self.packed.latents.undo()


class Builder:
    """Rebuilds one layer."""

    def __init__(
        self, library: Library, packs: Packs, trace: LayerTrace, parts: LayerParts, probed: Probed | None
    ) -> None:
        """`probed`: what its attention was seen to want; None: it doesn't attend."""
        self._library = library
        self._packs = packs
        self._trace = trace
        self._parts = parts
        self._probed = probed

    @property
    def attends(self) -> bool:
        """Return whether the layer attends, and doesn't keep a state or mix no tokens."""
        return self._probed is not None

    @property
    def divided(self) -> bool:
        """Return whether this process has a share of the layer."""
        return self._packs.group is not None

    def find(self, like: Variant | None) -> tuple[Layer, Variant]:
        """Return the layer and how it was found; `like`: what is tried first. The model is as it was.

        Its linears are packed if their final form is exact.
        """
        exact = self._pack(self._packs.exact or self._packs.final)
        tried = variants(self._trace, self._parts, like)
        found = next((each for each in tried if self._reproduces(self._layer(exact, each))), None)
        if found is None:
            raise OtherShape("a layer rebuilt from its parts computes something else")
        layer = self._layer(None if self._packs.exact else exact, found)
        group = self._packs.group
        if group is not None and (self._parts.per_layer is not None or self._parts.keeps_less):
            raise OtherShape(
                "layers with inputs of their own, or without values, can't be divided among processes"
            )
        if group is not None and self._probed is None:
            raise OtherShape("states can't be divided among processes")
        if group is not None and self._parts.latent is not None:
            raise OtherShape("latents can't be divided among processes")
        if group is not None and not self._parts.feeds:
            raise OtherShape("layers without an MLP can't be divided among processes")
        share = (
            None
            if group is None or self._probed is None
            else LayerShare(group.share, self._parts, self._probed)
        )
        return replace(layer, share=share), found

    def pack(self, layer: Layer) -> Layer:
        """Return a layer that was found with its linears packed to stay; the model's own are freed."""
        share = layer.share
        packed = layer.packed or self._pack(self._packs.final, share)
        if packed.mixture is not None:
            packed.mixture.experts.free()
        if packed.latents is not None:
            packed.latents.free()
        own = () if self._parts.per_layer is None else self._parts.per_layer.linears
        for group in (*self._parts.linears, *(each for each, _ in self._parts.kept), *own):
            for name in group.names:
                drop_weight(group.parent.get_submodule(name))
        if share is None:
            return replace(layer, packed=packed)
        probed = share.probed
        shape = replace(layer.shape, heads=share.heads, kv_heads=probed.shape.kv_heads, inner=share.inner)
        parts = replace(layer.parts, norms=share.norms)
        return replace(layer, parts=parts, packed=packed, probed=probed, shape=shape)

    def _pack(self, pack: NativePack, share: LayerShare | None = None) -> Packed:
        if share is not None:
            return Packed(tuple(pack(*each) for each in share.weights()))
        parts, mixture, latent = self._parts, self._parts.mixture, self._parts.latent
        linears = tuple(pack(*each.numbers()) for each in parts.linears)
        read = () if parts.per_layer is None else parts.per_layer.linears
        own = tuple(pack(*each.numbers()) for each in read)
        products = pack if pack is not self._packs.final else self._packs.products or pack
        latents = None if latent is None else PackedLatents(latent, pack, products)
        if mixture is None:
            return Packed(linears, None, own, latents)
        experts = NativeExperts(mixture.experts, pack, ExpertsMemory(self._library), frees=False)
        routed = Mixture(mixture, self._packs.routers(*mixture.routing()), experts)
        return Packed(linears, routed, own, latents)

    def _layer(self, packed: Packed | None, variant: Variant) -> Layer:
        parts, rotation = self._parts, variant.rotation
        if self._probed is None:
            return Layer(parts, None, packed, self._state_shape(variant), None)
        shape = self._probed.shape
        tables = None if self._trace.tables is None else arranged(self._trace.tables, rotation)
        stack_shape = StackShape(
            hidden=self._trace.given.shape[1],
            heads=parts.heads,
            kv_heads=shape.kv_heads,
            head_dim=shape.key_dim,
            inner=parts.inner,
            rotary_dim=tables[0].shape[1] if tables is not None else None,
            eps=parts.norms.eps,
            activation=cast(Activation, parts.activation),
            interleaved=rotation.startswith("neighbours"),
            scaling=self._probed.how.scaling * parts.factor,
            softcap=self._probed.how.softcap,
            residual=variant.residual,
            centred=parts.norms.centred,
        )
        rope = self._trace.rope
        rotated = None if rotation == "none" or rope is None else (rope, rotation)
        return Layer(
            *(parts, self._probed, packed, stack_shape, rotated),
            parallel=variant.parallel,
            late_norms=variant.late_norms,
        )

    def _state_shape(self, variant: Variant) -> StackShape:
        parts = self._parts
        return StackShape(
            hidden=self._trace.given.shape[1],
            heads=0,
            kv_heads=0,
            head_dim=1,
            inner=parts.inner,
            eps=parts.norms.eps,
            scaling=1.0,
            activation=cast(Activation, parts.activation),
            residual=variant.residual,
            centred=parts.norms.centred,
        )

    def _reproduces(self, layer: Layer) -> bool:
        """Return whether the layer makes of its trace's input what the model's own layer did."""
        trace, shape = self._trace, layer.shape
        if shape.rotary_dim is not None and shape.rotary_dim > shape.head_dim:
            return False
        of_heads = (each for each in (layer.parts.norms.query, layer.parts.norms.key) if each is not None)
        if layer.late_norms and not shape.centred and any(len(each) != shape.head_dim for each in of_heads):
            return False  # they are of all heads together
        if layer.parts.latent is not None and shape.rotary_dim not in (None, layer.parts.latent.rotated):
            return False
        tokens = len(trace.given)
        pages = blocks_for(tokens)
        past = self._past(pages)
        weights = layer.weights(past, None if layer.rope is None else 0)
        if weights.query_scales is not None:  # it was traced at the last positions
            weights = replace(weights, query_scales=weights.query_scales[-tokens:])
        stack = NativeStack(self._library, [weights], layer.shape)
        runs = NativeRuns(*(np.array([each]) for each in (tokens, -1, 0)))
        stack.keep(runs)
        table = np.arange(pages, dtype=np.int32)[None, ::-1].copy()
        zero = np.zeros(1, dtype=np.int64)
        step = NativeStep(zero, zero + tokens, zero, table)
        if self._parts.borrows and self._probed is not None and isinstance(past, NativeCacheLayer):
            keys, values = borrowed(trace)
            queries = keys.new_zeros(tokens, self._probed.heads, keys.shape[2])
            past.attend(queries, keys, values, step, self._probed.how)  # which keeps them
        pair = arranged(trace.tables, layer.rope[1]) if layer.rope and trace.tables else None
        tables = ([], []) if pair is None else ([pair[0]], [pair[1]])
        own = None if self._parts.per_layer is None else own_inputs(trace, self._parts.per_layer).contiguous()
        found = stack.run(trace.given, *tables, step, per_layer=own)
        added = (trace.result - trace.given).norm()
        return bool((found - trace.result).norm() <= _NEAR * added)

    def _past(self, pages: int) -> NativeCacheLayer | NativeStateLayer | None:
        """Return an empty cache, or place for a state; None: the layer mixes no tokens."""
        if self._probed is not None:
            return NativeCacheLayer(self._library, self._probed.shape, pages)
        if self._parts.state is None:
            return None
        layer = NativeStateLayer(self._parts.state)
        layer.allocate(1)
        return layer
