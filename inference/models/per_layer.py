"""What layers are given of a token beside the residual stream, as in Gemma 3n and Gemma 4: per-layer inputs.

A row of a second embedding and what a linear makes of the first one, normalised, are added up. Each layer has
a part of that, multiplies it by what its gate gives, and adds what a second linear makes of the result.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import embedding, linear
from transformers import PreTrainedModel

from inference.kernels.native_per_layer import PerLayerInputs
from inference.models.added import factor_of
from inference.models.joined import Linears
from inference.models.linears import NativeLinear, NativePack, drop_weight, numbers_of, weight_and_bias
from inference.models.mlps import find_activation
from inference.models.norms import norm_weight
from inference.models.other_shape import OtherShape
from inference.models.trace import LayerTrace, Trace
from inference.models.weights import NarrowEmbedding

_GATE, _PROJECTION, _NORM = "per_layer_input_gate", "per_layer_projection", "post_per_layer_input_norm"
_TABLE, OF_MODEL = "embed_tokens_per_layer", "per_layer_model_projection"
_FACTORS = ("per_layer_model_projection_scale", "per_layer_input_scale")
_NEAR = {torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}  # of the largest number


@dataclass(frozen=True, slots=True, eq=False)
class PerLayerParts:
    """A layer's part: x += norm(projection(activation(gate(x)) * inputs)), behind its MLP."""

    gate: Linears
    projection: Linears
    norm: Tensor  # (hidden,)
    eps: float
    activation: str

    @property
    def linears(self) -> tuple[Linears, Linears]:
        """Return both."""
        return self.gate, self.projection

    @property
    def size(self) -> int:
        """Return how many inputs there are."""
        return self.projection.inputs


def find_per_layer(layer: nn.Module) -> tuple[PerLayerParts | None, list[nn.Module]]:
    """Return a layer's part, and its modules; raise OtherShape."""
    if not isinstance(getattr(layer, _GATE, None), nn.Module):
        return None, []
    modules: list[Any] = [getattr(layer, name, None) for name in (_GATE, _PROJECTION, _NORM)]
    if not all(isinstance(each, nn.Module) for each in modules):
        raise OtherShape(f"it has a module `{_GATE}`, and not what goes with it")
    weights, eps = norm_weight(modules[2])
    gate, projection = (Linears(layer, (name,)) for name in (_GATE, _PROJECTION))
    return PerLayerParts(gate, projection, weights, eps, find_activation(layer)), modules


def scale_of(layer: nn.Module) -> float:
    """Return what all that a layer gives is multiplied by."""
    found = getattr(layer, "layer_scalar", None)
    return float(found) if isinstance(found, Tensor) and found.numel() == 1 else 1.0


def own_inputs(trace: LayerTrace, parts: PerLayerParts) -> Tensor:
    """Return the inputs (tokens, size) that a layer was given; raise OtherShape."""
    given = (*trace.arguments[1:], *trace.keywords.values())
    shape = (1, len(trace.given), parts.size)
    found = next((each for each in given if isinstance(each, Tensor) and each.shape == shape), None)
    if found is None:
        raise OtherShape("its layers aren't given inputs of their own")
    return found[0].float()


@dataclass(frozen=True, slots=True, eq=False)
class PerLayerEnds:
    """How a model makes its layers' inputs."""

    parent: nn.Module
    table: Tensor  # (ids, layers * size), maybe in 16 bits
    norm: Tensor  # (size,)
    eps: float
    given: int
    projection_factor: float
    table_factor: float
    factor: float

    def made(self, ids: Tensor, embedded: Tensor) -> Tensor:
        """Return the inputs (tokens, layers, size) of tokens whose embeddings are (tokens, hidden)."""
        weight, _ = weight_and_bias(self.parent.get_submodule(OF_MODEL))
        shape = (len(ids), -1, self.norm.numel())
        x = (linear(embedded.float(), weight.float()) * self.projection_factor).view(shape)
        x = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.norm
        return (x + embedding(ids, self.table).float().view(shape) * self.table_factor) * self.factor

    def pack(self, pack: NativePack) -> NativeLinear:
        """Return the packed projection; the model's own weight is freed."""
        own = self.parent.get_submodule(OF_MODEL)
        packed = pack(*numbers_of(own))
        drop_weight(own)
        return packed

    def undo(self, packed: NativeLinear) -> None:
        """Put the model's own projection back."""
        setattr(self.parent, OF_MODEL, packed.unpack())

    def weights(self, projection: NativeLinear) -> PerLayerInputs:
        """Return what C computes of them."""
        return PerLayerInputs(
            projection=projection.packed,
            table=self.table,
            norm=self.norm,
            eps=self.eps,
            given=self.given,
            projection_factor=self.projection_factor,
            table_factor=self.table_factor,
            factor=self.factor,
        )


@torch.inference_mode()
def read_inputs(model: PreTrainedModel, trace: Trace, ids: Tensor) -> PerLayerEnds | None:
    """Return how a model makes its layers' inputs, None if they have none; raise OtherShape.

    `ids`: the trace's prompt. What layers were given of it has to be what is found.
    """
    parts = [find_per_layer(each.layer)[0] for each in trace.layers]
    if all(each is None for each in parts):
        return None
    parent: Any = next((each for each in model.modules() if hasattr(each, _TABLE)), None)
    table = getattr(parent, _TABLE, None)
    if not isinstance(table, nn.Embedding | NarrowEmbedding) or not hasattr(parent, OF_MODEL):
        raise OtherShape("how its layers' own inputs are made isn't known")
    if len(table.weight) < model.get_input_embeddings().weight.shape[0]:
        raise OtherShape("its layers' own embedding has fewer rows than its embedding")
    norm, eps = norm_weight(parent.per_layer_projection_norm)
    pad = getattr(model.config.get_text_config(), "pad_token_id", None)
    factors = [float(getattr(parent, name)) for name in _FACTORS]
    rows = embedding(ids, table.weight.detach()).float()
    ends = PerLayerEnds(
        parent=parent,
        table=table.weight.detach(),
        norm=norm,
        eps=eps,
        given=pad if isinstance(pad, int) and 0 <= pad < len(table.weight) else 0,
        projection_factor=factors[0],
        table_factor=factor_of(rows, table(ids[None])[0], "by its layers' own embedding"),
        factor=factors[1],
    )
    made = ends.made(ids, trace.layers[0].given)
    for index, (part, each) in enumerate(zip(parts, trace.layers, strict=True)):
        given = None if part is None else own_inputs(each, part)
        same = _NEAR[each.given.dtype]
        if given is None or (made[:, index] - given).abs().max() > same * given.abs().max():
            raise OtherShape("its layers' own inputs are made in another way")
    return ends
