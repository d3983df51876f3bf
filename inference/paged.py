"""The paged KV cache behind transformers' attention interface.

transformers' models call one registered function per attention layer. Ours finds the layer's part
of the cache on the attention module itself, so no argument has to travel through the model's code
and no global changes between steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from inference.blocks import PAGE
from inference.kernels import reference
from inference.kernels.reference import Attention, Step

ATTENTION = "parley_paged"
_LAYER = "parley_layer"  # the attribute of an attention module that holds its layer


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one token needs in one layer's cache."""

    kv_heads: int
    key_dim: int
    value_dim: int

    @property
    def elements(self) -> int:
        """Return how many numbers that is."""
        return self.kv_heads * (self.key_dim + self.value_dim)


class _Layer(Protocol):
    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor: ...


class PagedCache:
    """Keys and values of all layers, in blocks of PAGE tokens; memory is touched as it is used."""

    def __init__(self, shapes: dict[nn.Module, LayerShape], blocks: int, like: PreTrainedModel) -> None:
        self.step: Step | None = None  # set by the runner before each forward
        for module, shape in shapes.items():
            setattr(module, _LAYER, _CacheLayer(self, shape, blocks, like.dtype, like.device))


class _CacheLayer:
    def __init__(
        self, cache: PagedCache, shape: LayerShape, blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._cache = cache
        self._keys, self._values = (
            torch.empty(blocks, PAGE, shape.kv_heads, dim, dtype=dtype, device=device)
            for dim in (shape.key_dim, shape.value_dim)
        )

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
        step = self._cache.step
        assert step is not None, "the runner sets the step"
        reference.write(self._keys, step.slots, key)
        reference.write(self._values, step.slots, value)
        return reference.attend(query, self._keys, self._values, step, how)


class _Probe:
    """Stands in for a layer once, to learn its shape."""

    def __init__(self, module: nn.Module, shapes: dict[nn.Module, LayerShape]) -> None:
        self._module = module
        self._shapes = shapes

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
        assert self._module not in self._shapes, "an attention module that is called twice has two caches"
        self._shapes[self._module] = LayerShape(key.shape[1], key.shape[2], value.shape[2])
        return query.new_zeros(*query.shape[:2], value.shape[2])


def use_paged_attention(model: PreTrainedModel) -> dict[nn.Module, LayerShape]:
    """Switch the model to paged attention and return its attention modules with their shapes."""
    AttentionInterface.register(ATTENTION, _attention)
    model.set_attn_implementation(ATTENTION)
    shapes: dict[nn.Module, LayerShape] = {}
    modules = list(model.modules())
    for module in modules:
        setattr(module, _LAYER, _Probe(module, shapes))
    try:
        zero = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
        with torch.inference_mode():
            model(input_ids=zero, position_ids=zero, use_cache=False)
    finally:
        for module in modules:
            delattr(module, _LAYER)
    return shapes


def _attention(
    module: nn.Module,
    query: Tensor,  # (1, heads, tokens, dim)
    key: Tensor,  # (1, kv_heads, tokens, dim)
    value: Tensor,  # (1, kv_heads, tokens, value_dim)
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers asks for it; the result is of shape (1, tokens, heads, value_dim)."""
    layer: _Layer = getattr(module, _LAYER)
    how = Attention(
        scaling=scaling if scaling is not None else query.shape[-1] ** -0.5,
        window=sliding_window or getattr(module, "sliding_window", None) or None,
        softcap=softcap,
        sinks=s_aux,
    )
    query, key, value = (each[0].transpose(0, 1) for each in (query, key, value))
    return layer.attend(query, key, value, how)[None], None
