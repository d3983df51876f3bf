"""That the parts of a layer of C's stack fit each other: it would read past their ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from inference.kernels.native_layers import LayerWeights, StackShape


def check_layer(layer: LayerWeights, shape: StackShape) -> None:
    """Assert that the parts fit each other: C would read past their ends."""
    _check_mixer(layer, shape)
    _check_mlp(layer, shape)
    for norm in layer.norms:
        assert norm is None or norm.shape == norm_shape(shape), "a weight for each hidden number"
    if layer.per_layer is not None:
        layer.per_layer.check(shape.hidden)
    assert layer.scale != 0, "what it gives is of use"
    for norm, linear in ((layer.attended_norm, layer.out), (layer.inner_norm, layer.down)):
        read = 0 if linear is None else linear.k
        assert norm is None or norm.shape == norm_shape(shape, read), "a weight for each number that is read"
    assert layer.inner_norm is None or layer.mixture is None, "an MLP's inner numbers"
    if shape.centred or layer.parallel:
        assert layer.attention_norm is layer.mlp_norm is None, "what is given isn't normalised"


def _check_mixer(layer: LayerWeights, shape: StackShape) -> None:
    if layer.qkv is None or layer.out is None:
        parts = layer.qkv, layer.out, layer.state, layer.cache
        assert all(each is None for each in parts), "a mixer, or none of it"
        assert layer.gate_up is not None or layer.mixture is not None, "a mixer, or an MLP"
        assert not layer.parallel, "there is nothing beside the MLP"
        return None
    assert layer.qkv.k == layer.out.n == shape.hidden, "it reads and gives what the layer does"
    if layer.state is not None:
        return layer.state.check(layer.qkv, layer.out)
    assert layer.cache is not None, "it attends, or keeps a state"
    for each in (layer.sinks, layer.slopes):
        assert each is None or each.shape == (shape.heads,), "a number for each head"
    cache = layer.cache.shape
    dim = cache.key_dim
    if layer.latent is not None:
        _check_beside_latents(layer)
        assert (layer.latent.weights.heads, dim) == (shape.heads, shape.head_dim), "as all layers"
        rotary_dim = layer.latent.weights.rotated if layer.rotary is None else rotated_width(layer, shape)
        return layer.latent.check(layer.qkv, layer.out, cache, rotary_dim)
    queries, keys = shape.heads * dim, cache.kv_heads * dim
    kept = (0,) if layer.borrows else (2 * keys, keys)
    assert layer.qkv.n - queries * (1 + bool(layer.gated)) in kept, "what attends"
    assert layer.out.k == queries, "what attends"
    assert cache.value_dim == dim, "values are of the size of keys"
    assert shape.heads % cache.kv_heads == 0, "heads share keys evenly"
    assert layer.rotary is None or rotated_width(layer, shape) <= dim, "no more is rotated than there is"
    assert layer.value_norm is None or layer.value_norm.shape == (dim,), "a weight for each number"
    assert not layer.gated or dim == shape.head_dim, "gates are of heads of one size"
    together = dim if layer.gated else queries  # there are gates between heads
    assert layer.query_norm is None or norm_width(layer.query_norm, shape) in (dim, together)
    assert layer.key_norm is None or norm_width(layer.key_norm, shape) in (dim, keys)
    for norm in (layer.query_norm, layer.key_norm):
        each_head = norm is None or norm_width(norm, shape) == dim or shape.centred
        assert each_head or not layer.late_norms, "late norms are of each head"


def _check_beside_latents(layer: LayerWeights) -> None:
    """Assert that there is nothing that C would pass over where heads attend to latents."""
    for each in (layer.query_norm, layer.key_norm, layer.value_norm):
        assert each is None, "latents' norms are their mixer's"
    assert layer.query_scales is None, "queries aren't scaled"
    assert not layer.gated, "what is found isn't gated"
    assert not layer.borrows, "the cache is its own"


def rotated_width(layer: LayerWeights, shape: StackShape) -> int:
    """Return how many numbers of a layer's heads are rotated."""
    own = shape.rotary_dim if layer.rotary_dim is None else layer.rotary_dim
    return shape.head_dim if own is None else own


def rotary_widths(layers: Sequence[LayerWeights], shape: StackShape) -> dict[int, int]:
    """Return how wide the tables of each rotary embedding are that layers name."""
    found: dict[int, int] = {}
    for layer in layers:
        if layer.rotary is not None:
            width = rotated_width(layer, shape)
            assert found.setdefault(layer.rotary, width) == width, "layers share what is as wide"
    return found


def norm_shape(shape: StackShape, size: int | None = None) -> tuple[int, ...]:
    """Return how the weights of norms of so many numbers lie; None: of hidden ones."""
    size = shape.hidden if size is None else size
    return (2, size) if shape.centred else (size,)


def norm_width(norm: Tensor, shape: StackShape) -> int:
    """Return of how many numbers of queries or keys a norm has weights."""
    return norm.numel() // 2 if shape.centred else norm.numel()


def _check_mlp(layer: LayerWeights, shape: StackShape) -> None:
    if layer.mixture is not None:
        layer.mixture.check(shape.hidden)
    if layer.gate_up is None or layer.down is None:
        assert layer.gate_up is layer.down is None, "an MLP is all there, or none of it"
        assert layer.mixture is None or not layer.mixture.gated, "there is an MLP to be gated"
        assert layer.mixture is not None or not layer.parallel, "there is nothing beside attention"
        return
    inner = layer.down.k
    assert inner <= shape.inner, "no MLP has more inner numbers"
    assert layer.gate_up.n in (inner, 2 * inner), "ups, or gates and ups"
    if shape.activation == "xielu":
        assert layer.xielu is not None, "its numbers are known"
        assert layer.gate_up.n == inner, "and there are no gates"
    assert layer.gate_up.k == shape.hidden, "it reads what the layer does"
    assert layer.down.n == shape.hidden, "the MLP's output"
