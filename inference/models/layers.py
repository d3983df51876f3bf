"""Decoder layers of known shapes, recognised by what is in them and by what it computes.

Of Llama's shape a layer has attention with linears q, k, v (or one for all) and o, a gated MLP with gate, up
(or one for both) and down, and root-mean-square norms before, after or around them. Others have layer norms,
no gates, linears by other names, or attention and the MLP beside each other. What the norms, the activation
and the rotation are exactly is found by trying them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from inference.kernels.native_state_layers import StateWeights
from inference.models.attention_linears import KEYS_ALONE, QKV, attention_linears, kept_of
from inference.models.blocks import find_block, parts_of, refuse_others
from inference.models.borrowed import value_norm
from inference.models.joined import Linears as Linears
from inference.models.latent_layers import LatentParts, makes_latents, read_latents
from inference.models.linears import NativeLinear
from inference.models.merged_qkv import Layout
from inference.models.mixture_parts import MixtureParts as MixtureParts
from inference.models.mlps import GATE_UP, Mlp, read_mlp
from inference.models.norms import Norms, is_norm, read_norm
from inference.models.norms import norm_weight as norm_weight
from inference.models.other_shape import OtherShape as OtherShape
from inference.models.paged import Probed
from inference.models.per_layer import PerLayerParts, find_per_layer, scale_of
from inference.models.xielu import Xielu

_BETWEEN = (("attn_sub_norm", "ffn_sub_norm"), ("inner_attn_ln", "ffn_layernorm"))  # as in BitNet, KOSMOS-2.5
_HEAD_NORMS = (("q_norm", "k_norm"), ("q_layernorm", "k_layernorm"), ("query_layernorm", "key_layernorm"))
JOINED = (*QKV, *GATE_UP)  # whose linears are computed as one
LAYER_LINEARS = 4  # of which those with the same input are computed as one
_MULTIPLIERS = ("residual_multiplier", "residual_scale")  # of what attention and the MLP give
_LFM3 = ("operator_norm", "post_operator_norm", "ffn_norm", "post_ffn_norm")
_FEW = 2  # norms whose names don't say where they are
_LLAMAS_ACTIVATIONS = ("silu", "gelu_tanh", "gelu")


Kept = tuple[tuple[Linears, NativeLinear], ...]  # linears that a state is read by, which are packed already
ReadMixture = Callable[[nn.Module], MixtureParts | None]  # None: it has no experts. Raises OtherShape


@dataclass(frozen=True, slots=True, eq=False)
class MixerParts:
    """What keeps a state in a layer: two linears, and what is between them."""

    into: Linears
    out: Linears
    state: StateWeights
    kept: Kept = ()


@dataclass(frozen=True, slots=True, eq=False)
class LayerParts:
    """A layer in its parts."""

    qkv: Linears | None  # or what else it begins with; None: nothing mixes its tokens
    out: Linears | None
    gate_up: Linears | None  # None: a mixture that there is shares nothing
    down: Linears | None
    norms: Norms
    activation: str
    residuals: tuple[float, ...]  # what may be multiplied with what is added to the stream
    heads: int
    inner: int
    mixture: MixtureParts | None = None  # what it gives is added to what the MLP gives
    slopes: bool = False  # scores depend on distance
    factor: float = 1.0  # what queries are multiplied by, beside what scores are
    gated: int = 0  # behind each head's query (1), or behind all (2), are gates of what heads are given
    state: StateWeights | None = None  # of a layer that keeps a state and doesn't attend
    latent: LatentParts | None = None  # of one whose heads attend to latents
    xielu: Xielu | None = None  # the numbers of such an activation
    query_scales: Tensor | None = None  # (positions,): what queries are multiplied by there
    kept: Kept = ()
    per_layer: PerLayerParts | None = None  # what it does with inputs of its own
    scale: float = 1.0  # what all that it gives is multiplied by
    borrows: bool = False  # its keys and values are an earlier layer's

    @property
    def feeds(self) -> bool:
        """Return whether there is an MLP, or a mixture."""
        return self.gate_up is not None or self.mixture is not None

    @property
    def keeps_less(self) -> bool:
        """Return whether its linears give no values: keys are these, too, or they are another layer's."""
        return self.borrows or (self.qkv is not None and self.qkv.names == KEYS_ALONE)

    @property
    def gates(self) -> bool:
        """Return whether an MLP that there is has gates."""
        return self.gate_up is None or sum(self.gate_up.sizes) == 2 * self.inner

    def laid_out(self, layout: Layout | None) -> LayerParts:
        """Return the same with what attention does with what its linears give."""
        if layout is None:
            return self
        assert self.qkv is not None, "it attends"
        qkv = self.qkv if layout.order is None else self.qkv.ordered(layout.order)
        return replace(self, qkv=qkv, factor=layout.factor)

    def check_llamas(self) -> None:
        """Raise OtherShape if the layer isn't of Llama's shape."""
        if self.norms.centred:
            raise OtherShape("its norms are layer norms, and no root-mean-square norms")
        if not self.feeds:
            raise OtherShape("it has no MLP")
        if not self.gates:
            raise OtherShape("its MLP has no gates")
        if self.activation not in _LLAMAS_ACTIVATIONS:
            raise OtherShape(f"its activation is none of {', '.join(_LLAMAS_ACTIVATIONS)}")
        if self.slopes:
            raise OtherShape("its scores depend on distance")
        if self.gated:
            raise OtherShape("what it attends to is gated")
        if self.keeps_less or self.norms.value is not None:
            raise OtherShape("its keys and values aren't what linears of its own give")
        if self.per_layer is not None or self.scale != 1.0:
            raise OtherShape("it has inputs of its own, or a scale")
        if self.latent is not None:
            raise OtherShape("its heads attend to latents")
        if not (self.norms.attended is self.norms.inner is None):
            raise OtherShape("it has norms between its linears")

    @property
    def plain(self) -> bool:
        """Return whether its first linear gives queries, keys and values alone."""
        return self.state is None and self.latent is None and not self.gated

    @property
    def places(self) -> tuple[Linears | None, ...]:
        """Return the linears at their places, those computed as one together."""
        return self.qkv, self.out, self.gate_up, self.down

    @property
    def linears(self) -> tuple[Linears, ...]:
        """Return those that there are."""
        return tuple(each for each in self.places if each is not None)


def read_layer(
    layer: nn.Module, attention: nn.Module, probed: Probed, mixture_in: ReadMixture = lambda _: None
) -> LayerParts:
    """Return a layer's parts; raise OtherShape.

    `mixture_in`: what reads mixtures of experts, where they will do.
    """
    shape = probed.shape
    if shape.latent:
        into, last, latent = read_latents(attention)
        found = _around(layer, attention, (into, last), latent.modules, mixture_in, probed)
        return replace(found, heads=probed.heads, latent=latent)
    if makes_latents(attention):
        raise OtherShape("its latents are expanded to each head's keys and values")
    qkv, out = attention_linears(attention, probed)
    known = [attention] if _has_sinks_alone(attention, probed.how.sinks) else []
    found = _around(layer, attention, (qkv, out), known, mixture_in, probed)
    if shape.key_dim != shape.value_dim:
        raise OtherShape("its keys and values are of different sizes")
    heads = sum(qkv.sizes) // shape.key_dim - kept_of(qkv, probed) * shape.kv_heads
    gated = heads == 2 * probed.heads
    return replace(
        found,
        heads=probed.heads if gated else heads,
        gated=(2 if len(qkv.names) > len(QKV[0]) else 1) if gated else 0,
        slopes=probed.how.slopes is not None,
        borrows=probed.borrows is not None,
    )


def read_state_layer(
    layer: nn.Module, mixer: nn.Module, parts: MixerParts, mixture_in: ReadMixture = lambda _: None
) -> LayerParts:
    """Return the parts of a layer that keeps a state, which are `mixer`'s; raise OtherShape."""
    linears = parts.into, parts.out
    return replace(
        _around(layer, mixer, linears, list(mixer.modules()), mixture_in), state=parts.state, kept=parts.kept
    )


def read_mlp_layer(layer: nn.Module, mixture_in: ReadMixture = lambda _: None) -> LayerParts:
    """Return the parts of a layer in which nothing mixes tokens; raise OtherShape."""
    found = _around(layer, None, (), [], mixture_in)
    norms = found.norms
    if norms.before_mlp is not None or norms.after_attention is not None:
        raise OtherShape("it has several norms, and nothing that mixes its tokens")
    return replace(found, norms=replace(norms, before_attention=None, before_mlp=norms.before_attention))


def _around(
    layer: nn.Module,
    mixer: nn.Module | None,
    linears: tuple[Linears, ...],
    known: list[nn.Module],
    mixture_in: ReadMixture,
    probed: Probed | None = None,
) -> LayerParts:
    """Return the parts of a layer around what mixes its tokens, whose linears and other modules are known."""
    block = find_block(layer, mixer)
    mixture = None if block is None else mixture_in(block)
    shared = block if mixture is None else mixture.shared
    mlp = None if shared is None else read_mlp(shared)
    inner = 0 if mlp is None else mlp.inner
    own, of_own = find_per_layer(layer)
    reads = _inputs(linears, mlp, mixture), linears[1].inputs if linears else 0, inner
    norms, normed = _norms(layer, mixer, block, probed, reads, of_own)
    if own is not None and own.eps != norms.eps:
        raise OtherShape("its norms have different epsilons")
    known += [] if mixture is None else list(mixture.block.modules())  # who read it knows them
    known += [*(each for norm in normed for each in norm.modules()), *of_own, *(mlp.own if mlp else ())]
    refuse_others(layer, known, [*linears, *((mlp.up, mlp.down) if mlp else ())])
    multiplier = next((getattr(layer, name) for name in _MULTIPLIERS if hasattr(layer, name)), 1.0)
    return LayerParts(
        qkv=linears[0] if linears else None,
        out=linears[1] if linears else None,
        gate_up=None if mlp is None else mlp.up,
        down=None if mlp is None else mlp.down,
        norms=norms,
        activation="silu" if mlp is None else mlp.activation,
        residuals=(1.0,) if multiplier == 1.0 else (float(multiplier), 1.0),
        heads=0,
        inner=inner,
        mixture=mixture,
        per_layer=own,
        scale=scale_of(layer),
        xielu=None if mlp is None else mlp.numbers,
    )


def _inputs(linears: tuple[Linears, ...], mlp: Mlp | None, mixture: MixtureParts | None) -> int:
    """Return how many numbers a layer reads of a row, as the first of its parts does."""
    if linears or mlp is not None:
        return next(each.inputs for each in (*linears, *(() if mlp is None else (mlp.up,))))
    assert mixture is not None, "it has parts"
    return mixture.router.shape[1]


def _norms(
    layer: nn.Module,
    attention: nn.Module | None,
    block: nn.Module | None,
    probed: Probed | None,
    reads: tuple[int, int, int],
    others: list[nn.Module],
) -> tuple[Norms, list[nn.Module]]:
    """Return what a layer's norms compute, and these; `others`: modules that are no such norms.

    `reads`: how much the first linear reads, the one behind attention and the MLP's second one.
    """
    hidden = reads[0]
    between = _named_norms((attention, block), _BETWEEN)
    modules, sizes = _placed_norms(layer, attention, block, others) + between, [(hidden, 1)] * 4
    sizes += [(width, 1) for width in reads[1:]]
    modules += [None, None] if probed is None else _named_norms((attention, attention), _HEAD_NORMS)
    counts = (1, 1) if probed is None else (probed.heads, probed.shape.kv_heads)
    sizes += [(hidden if probed is None else probed.shape.key_dim, count) for count in counts]
    found = [
        None if each is None else read_norm(each, *size) for each, size in zip(modules, sizes, strict=True)
    ]
    there = [each for each in found if each is not None]
    values = None if probed is None or attention is None else value_norm(attention, probed.shape.value_dim)
    if len({each.eps for each in there} | ({values[1]} if values else set())) != 1:
        raise OtherShape("its norms have different epsilons, or there are none")
    if len({each.centred for each in there}) != 1:
        raise OtherShape("some of its norms subtract the mean, others don't")
    before, after, before_mlp, after_mlp, attended, inner, query, key = (
        None if each is None else each.weights for each in found
    )
    norms = Norms(
        eps=there[0].eps,
        before_attention=before,
        after_attention=after,
        before_mlp=before_mlp,
        after_mlp=after_mlp,
        query=query,
        key=key,
        centred=there[0].centred,
        value=values[0] if values else None,
        attended=attended,
        inner=inner,
    )
    if norms.centred and any(each is not None for each in (after, after_mlp, attended, inner)):
        raise OtherShape("its layer norms are of what attention or the MLP gives")
    return norms, [each for each in modules if each is not None]


def _placed_norms(
    layer: nn.Module, attention: nn.Module | None, block: nn.Module | None, others: list[nn.Module]
) -> list[nn.Module | None]:
    """Return those before attention, after it, before the MLP and after it."""
    blocks = *parts_of(block), *others
    given = {name: each for name, each in _norm_modules(layer, attention) if each not in blocks}
    if block is layer:
        given = {name: each for name, each in given.items() if is_norm(each)}
    if given.keys() == set(_LFM3):
        return [given[name] for name in _LFM3]
    if "pre_feedforward_layernorm" in given:  # as in Gemma 2
        order = ("input", "post_attention", "pre_feedforward", "post_feedforward")
    elif "post_feedforward_layernorm" in given:  # as in OLMo 2
        order = ("input", "post_attention", "", "post_feedforward")
    elif "post_self_attn_layernorm" in given:  # as in GLM 4
        order = ("input", "post_self_attn", "post_attention", "post_mlp")
    elif "pre_ff_layernorm" in given:  # as in Bamba
        order = ("input", "", "pre_ff", "")
    elif "pre_mlp_layernorm" in given:  # as in AFMoE
        order = ("input", "post_attention", "pre_mlp", "post_mlp")
    elif "post_norm1" in given:  # as in HyperCLOVA X
        order = ("input", "post_norm1", "post_attention", "post_norm2")
    else:
        order = ("input", "", "post_attention", "")
    placed = [given.pop(name, given.pop(f"{name}_layernorm", None)) for name in order]
    if not given:
        return placed
    if any(placed) or len(given) > _FEW or not all(map(is_norm, given.values())):
        raise OtherShape(f"it has a module `{next(iter(given))}`")
    first, *second = given.values()  # by other names, in the order in which they are needed
    return [first, None, second[0] if second else None, None]


def _named_norms(
    parents: tuple[nn.Module | None, nn.Module | None], pairs: tuple[tuple[str, str], ...]
) -> list[nn.Module | None]:
    """Return those of two modules that have one of several pairs of names, one in each."""
    found = (
        [getattr(parent, name, None) for name in names]
        for parent, names in zip(parents, zip(*pairs, strict=True), strict=True)
    )
    return [next((each for each in named if isinstance(each, nn.Module)), None) for named in found]


def _norm_modules(layer: nn.Module, attention: nn.Module | None) -> Iterator[tuple[str, nn.Module]]:
    """Return what is in a layer beside its attention and its MLP."""
    for name, module in layer.named_children():
        if (attention is None or attention not in module.modules()) and (
            is_norm(module) or any(True for _ in module.parameters())
        ):
            yield name, module


def _has_sinks_alone(attention: nn.Module, sinks: Tensor | None) -> bool:
    """Return whether an attention module's own parameters are the sinks that it was seen to attend with."""
    own = list(attention.parameters(recurse=False))
    return (
        sinks is not None and len(own) == 1 and torch.equal(own[0].flatten().float(), sinks.flatten().float())
    )
