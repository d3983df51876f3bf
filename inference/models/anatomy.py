"""A model of layers of known shapes, taken apart: what the C extension's stack and the GPU's are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from types import MappingProxyType

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from inference.models.added import NOTHING
from inference.models.ends import Bare, lookup, read_ends
from inference.models.kept_rotations import with_kept_rotations
from inference.models.layers import (
    LayerParts,
    MixerParts,
    OtherShape,
    ReadMixture,
    read_layer,
    read_mlp_layer,
    read_state_layer,
)
from inference.models.merged_qkv import read_layouts
from inference.models.paged import Probed
from inference.models.per_layer import read_inputs
from inference.models.query_scales import find_query_scales
from inference.models.replaced import replace_ids, replaced_ids
from inference.models.rotary import is_static
from inference.models.trace import LayerTrace, decoder_layers, lone_layers, trace_model

# In the order in which they are tried. Neighbours are rotated against each other by tables made for
# that, or (spread) by tables made for halves. Halves may have one table for both (doubled), or be rotated
# the other way (backwards).
ROTATIONS = ("half", "neighbours", "neighbours spread", "half doubled", "half backwards", "none")
_OF_LLAMAS = ("half", "neighbours", "neighbours spread", "none")  # which GPUs have kernels for


@dataclass(frozen=True, slots=True)
class Variant:
    """What of a layer is found by trying."""

    rotation: str  # one of ROTATIONS
    residual: float
    parallel: bool = False  # attention and the MLP are beside each other
    late_norms: bool = False  # queries and keys are normalised once they are rotated


@dataclass(frozen=True, slots=True, eq=False)
class Anatomy:
    """A model's layers with their parts, in order, and what is around them."""

    layers: tuple[LayerTrace, ...]
    parts: tuple[LayerParts, ...]
    ends: Bare


def read_model(
    model: PreTrainedModel,
    probed: dict[nn.Module, Probed],
    prompt: NDArray[np.int64],
    positions: int,
    mixture_in: ReadMixture = lambda _: None,
    mixers: Mapping[nn.Module, MixerParts] = MappingProxyType({}),
    *,
    llamas: bool = False,
) -> Anatomy:
    """Return a model's parts; raise OtherShape. Nothing is changed.

    `positions`: how many there can be; layers are traced at the last of them. `mixture_in`: what reads
    mixtures of experts, where they will do. `mixers`: the modules that keep a state in place of
    attention. `llamas`: only Llama's shape will do.
    """
    pasts = [each for each in model.modules() if each in mixers or each in probed]
    attentions = pasts if mixers else list(probed)
    layers = decoder_layers(model, attentions)
    if layers is None and not llamas:  # some may be an MLP alone
        layers, attentions = lone_layers(model, attentions) or (None, attentions)
    last = max(positions - len(prompt), 0)  # that near positions are right is seen by the whole model's proof
    try:
        trace = trace_model(model, layers, attentions, prompt, last) if layers else None
    except IndexError as error:  # of a table that grows with a text
        raise OtherShape(
            f"its own code can't begin at position {last}, the last that it has ({error})"
        ) from error
    if trace is None:
        raise OtherShape("its layers aren't one list, with an embedding before and a norm and a head after")
    traced = trace.layers if llamas else with_kept_rotations(trace.layers, last)
    for rope in {each.rope for each in traced if each.rope is not None}:
        if not is_static(rope, positions):
            raise OtherShape("its rotary embedding depends on more than the position")
    replaced = replaced_ids(model)
    embedded = replace_ids(prompt, replaced)
    ends = read_ends(model, trace, lookup(model, embedded), last)
    own = read_inputs(model, trace, torch.from_numpy(embedded).to(model.device))
    parts = [_read_layer(each, probed, mixture_in, mixers) for each in traced]
    pairs = list(zip(traced, parts, strict=True))
    attending = {trace.attention: each.qkv for trace, each in pairs if each.qkv is not None and each.plain}
    if llamas:
        _check_llamas(parts, ends)
        if replaced:
            raise OtherShape("its embedding is given other ids than the model")
    ends = replace(ends, per_layer=own, replaced=replaced)
    layouts = read_layouts(model, attending)
    if not llamas:  # linears give queries first, then keys, then values
        scales = find_query_scales(model, attending, max(positions, len(prompt)))
        parts = [
            replace(each.laid_out(layouts.get(trace.attention)), query_scales=scales.get(trace.attention))
            for trace, each in pairs
        ]
        if ends.centred != parts[0].norms.centred:
            raise OtherShape("its last norm is of another kind than its layers'")
    return Anatomy(traced, tuple(parts), ends)


def _read_layer(
    trace: LayerTrace,
    probed: Mapping[nn.Module, Probed],
    mixture_in: ReadMixture,
    mixers: Mapping[nn.Module, MixerParts],
) -> LayerParts:
    """Return the parts of a layer that keeps a state, attends, or mixes no tokens; raise OtherShape."""
    if trace.attention in mixers:
        return read_state_layer(trace.layer, trace.attention, mixers[trace.attention], mixture_in)
    if trace.attention is trace.layer:
        return read_mlp_layer(trace.layer, mixture_in)
    return read_layer(trace.layer, trace.attention, probed[trace.attention], mixture_in)


def _check_llamas(parts: list[LayerParts], ends: Bare) -> None:
    """Raise OtherShape if anything isn't of Llama's shape."""
    for each in parts:
        each.check_llamas()
    if ends.centred:
        raise OtherShape("its last norm is no root-mean-square norm")
    if ends.added is not NOTHING:
        raise OtherShape("something is computed between its embedding and its layers")


def variants(
    trace: LayerTrace, parts: LayerParts, like: Variant | None, *, llamas: bool = False
) -> Iterator[Variant]:
    """Yield what a layer may be, `like` first; `llamas`: of Llama's shape only."""
    if like is not None:
        yield like
    known = _OF_LLAMAS if llamas else ROTATIONS
    rotations = known if trace.rope is not None and parts.state is None else ("none",)
    norms = parts.norms
    lone = norms.before_attention is not None and norms.after_attention is norms.after_mlp is None
    orders = (False, True) if lone and parts.feeds and not llamas else (False,)
    of_heads = norms.query is not None or norms.key is not None
    late = (False, True) if of_heads and not llamas else (False,)
    for each in product(orders, late, rotations, parts.residuals):
        parallel, late_norms, rotation, residual = each
        variant = Variant(rotation, residual, parallel, late_norms)
        if variant != like:
            yield variant
