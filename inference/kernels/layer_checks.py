"""That the parts of a layer of C's stack fit each other: it would read past their ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

if TYPE_CHECKING:
    from inference.kernels.native_layers import LayerWeights, StackShape


def check_layer(layer: LayerWeights, shape: StackShape) -> None:
    """Assert that the parts fit each other: C would read past their ends."""
    queries, keys = shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
    cache = layer.cache.shape
    assert (layer.qkv.n, layer.qkv.k) == (queries + 2 * keys, shape.hidden), "queries, keys and values"
    assert (layer.out.n, layer.out.k) == (shape.hidden, queries), "attention's output"
    _check_mlp(layer, shape)
    assert (cache.kv_heads, cache.key_dim, cache.value_dim) == (
        shape.kv_heads,
        shape.head_dim,
        shape.head_dim,
    )
    for norm in (layer.input_norm, layer.mid_norm, layer.attention_norm, layer.mlp_norm):
        assert norm is None or norm.shape == norm_shape(shape), "a weight for each hidden number"
    assert layer.query_norm is None or norm_width(layer.query_norm, shape) in (shape.head_dim, queries)
    assert layer.key_norm is None or norm_width(layer.key_norm, shape) in (shape.head_dim, keys)
    if shape.centred or layer.parallel:
        assert layer.attention_norm is layer.mlp_norm is None, "what is given isn't normalised"
    for each in (layer.sinks, layer.slopes):
        assert each is None or each.shape == (shape.heads,), "a number for each head"


def norm_shape(shape: StackShape) -> tuple[int, ...]:
    """Return how the weights of norms of hidden numbers lie."""
    return (2, shape.hidden) if shape.centred else (shape.hidden,)


def norm_width(norm: Tensor, shape: StackShape) -> int:
    """Return of how many numbers of queries or keys a norm has weights."""
    return norm.numel() // 2 if shape.centred else norm.numel()


def _check_mlp(layer: LayerWeights, shape: StackShape) -> None:
    if layer.mixture is not None:
        layer.mixture.check(shape.hidden)
    if layer.gate_up is None or layer.down is None:
        assert layer.gate_up is layer.down is None, "an MLP is all there, or none of it"
        assert layer.mixture is not None, "an MLP, or a mixture"
        assert not layer.mixture.gated, "there is an MLP to be gated"
        return
    inner = layer.down.k
    assert inner <= shape.inner, "no MLP has more inner numbers"
    assert layer.gate_up.n in (inner, 2 * inner), "ups, or gates and ups"
    assert layer.gate_up.k == shape.hidden, "it reads what the layer does"
    assert layer.down.n == shape.hidden, "the MLP's output"
