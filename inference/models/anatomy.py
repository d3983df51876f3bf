"""A model of Llama-shaped layers, taken apart: what the C extension's stack and the GPU's are made of."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray
from torch import nn
from transformers import PreTrainedModel

from inference.models.ends import Bare, lookup, read_ends
from inference.models.layers import (
    LayerParts,
    MixerParts,
    OtherShape,
    ReadMixture,
    read_layer,
    read_state_layer,
)
from inference.models.paged import Probed
from inference.models.rotary import is_static
from inference.models.trace import LayerTrace, decoder_layers, trace_model

# In the order in which they are tried. Neighbours are rotated against each other by tables made for
# that, or (spread) by tables made for halves. Halves may have one table for both (doubled).
ROTATIONS = ("half", "neighbours", "neighbours spread", "half doubled", "none")


@dataclass(frozen=True, slots=True)
class Variant:
    """What of a layer is found by trying."""

    rotation: str  # one of ROTATIONS
    residual: float


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
) -> Anatomy:
    """Return a model's parts; raise OtherShape. Nothing is changed.

    `positions`: how many there can be; layers are traced at the last of them. `mixture_in`: what reads
    mixtures of experts, where they will do. `mixers`: the modules that keep a state in place of attention.
    """
    attentions = (
        [each for each in model.modules() if each in mixers or each in probed] if mixers else list(probed)
    )
    layers = decoder_layers(model, attentions)
    last = max(positions - len(prompt), 0)  # that near positions are right is seen by the whole model's proof
    trace = trace_model(model, layers, attentions, prompt, last) if layers else None
    if trace is None:
        raise OtherShape("its layers aren't one list, with an embedding before and a norm and a head after")
    for rope in {each.rope for each in trace.layers if each.rope is not None}:
        if not is_static(rope, positions):
            raise OtherShape("its rotary embedding depends on more than the position")
    ends = read_ends(model, trace, lookup(model, prompt))
    parts = tuple(
        read_state_layer(each.layer, each.attention, mixers[each.attention], mixture_in)
        if each.attention in mixers
        else read_layer(each.layer, each.attention, probed[each.attention], mixture_in)
        for each in trace.layers
    )
    return Anatomy(trace.layers, parts, ends)


def variants(trace: LayerTrace, parts: LayerParts, like: Variant | None) -> Iterator[Variant]:
    """Yield what a layer may be, `like` first."""
    if like is not None:
        yield like
    rotations = ROTATIONS if trace.rope is not None and parts.state is None else ("none",)
    for rotation, residual in product(rotations, parts.residuals):
        variant = Variant(rotation, residual)
        if variant != like:
            yield variant
