"""The paged KV cache behind transformers' attention interface.

transformers' models call one registered function per attention layer. Ours finds the layer's part
of the cache on the attention module itself, so no argument has to travel through the model's code
and no global changes between steps.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers import AttentionInterface, PreTrainedModel

from inference.kernels import reference
from inference.kernels.reference import Attention, Piece, Step
from inference.kv_cache.blocks import PAGE
from inference.models.attending import ATTENTION, attend, attend_by, install, uninstall
from inference.models.borrowed import Lenders
from inference.models.latent import latent_of
from inference.sequences.seen import limits_in
from inference.sequences.state import Pieces

CHUNKED = "chunked_attention"  # a type of layers, as configurations call it
_UNSAID = object()


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one token needs in one layer's cache."""

    kv_heads: int
    key_dim: int
    value_dim: int
    latent: bool = False  # values are the first numbers of keys, and aren't kept beside them

    @property
    def elements(self) -> int:
        """Return how many numbers that is."""
        return self.kv_heads * self.head_elements

    @property
    def head_elements(self) -> int:
        """Return how many numbers that is for one head of keys."""
        return self.key_dim if self.latent else self.key_dim + self.value_dim


@dataclass(frozen=True, slots=True)
class Probed:
    """What an attention module was seen to want."""

    shape: LayerShape
    how: Attention
    heads: int  # of queries
    borrows: nn.Module | None = None  # whose keys and values it attends to; None: its own


class PagedCache:
    """Keys and values of all layers, in blocks of PAGE tokens; what nobody wrote to takes no memory."""

    def __init__(
        self, layers: dict[nn.Module, Probed], blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self.step: Step | None = None  # set before each forward
        self._dtype = dtype
        self._device = device
        arrays: list[Tensor] = []
        for module, probed in layers.items():
            layer = _CacheLayer(self, probed.shape, blocks, dtype, device)
            install(module, layer)
            arrays += (layer.keys,) if probed.shape.latent else (layer.keys, layer.values)
        self.arrays = tuple(arrays) if device.type == "cpu" else ()

    def begin(self, pieces: Pieces) -> None:
        """Take the step that the next forward pass computes."""
        chunks, limits = pieces.chunks, limits_in(pieces)
        cuts = np.cumsum([chunk.size for chunk in chunks])[:-1]
        parts = [None] * len(chunks) if limits is None else np.split(limits, cuts)
        pairs = zip(chunks, parts, strict=True)
        packed = [Piece(chunk.start, chunk.stop, chunk.sequence.blocks, part) for chunk, part in pairs]
        self.step = Step(packed, self._device, self._dtype)


class _CacheLayer:
    def __init__(
        self, cache: PagedCache, shape: LayerShape, blocks: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        self._cache = cache
        self.keys, self.values = empty_pages(shape, blocks, dtype, device)

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
        step = self._cache.step
        assert step is not None, "the runner sets the step"
        reference.write(self.keys, step.slots, key)
        if not how.latent:
            reference.write(self.values, step.slots, value)
        return reference.attend(query, self.keys, self.values, step, how)


def empty_pages(
    shape: LayerShape, blocks: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Tensor]:
    """Return a layer's keys and values (blocks, PAGE, kv_heads, dim); latent values are part of the keys."""
    keys, values = (
        torch.empty(blocks, PAGE, shape.kv_heads, dim, dtype=dtype, device=device)
        for dim in (shape.key_dim, 0 if shape.latent else shape.value_dim)
    )
    return keys, keys[..., : shape.value_dim] if shape.latent else values


class _Probe:
    """Stands in for a layer once, to learn what it wants."""

    def __init__(self, module: nn.Module, seen: dict[nn.Module, Probed], lenders: Lenders) -> None:
        self._module = module
        self._seen = seen
        self._lenders = lenders

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
        assert self._module not in self._seen, "an attention module that is called twice has two caches"
        shape = LayerShape(key.shape[1], key.shape[2], value.shape[2], how.latent)
        lender = self._lenders.of(self._module, key, value)
        self._seen[self._module] = Probed(shape, how, query.shape[1], lender)
        return query.new_zeros(*query.shape[:2], value.shape[2])


def use_paged_attention(model: PreTrainedModel) -> dict[nn.Module, Probed]:
    """Switch the model to paged attention and return its attention modules, in the order they are called."""
    AttentionInterface.register(ATTENTION, _attention)
    attend_by(model, ATTENTION)
    seen: dict[nn.Module, Probed] = {}
    modules, lenders = list(model.modules()), Lenders()
    for module in modules:
        install(module, _Probe(module, seen, lenders))
    try:
        zero = torch.zeros(1, 1, dtype=torch.int64, device=model.device)
        with torch.inference_mode():
            model(input_ids=zero, position_ids=zero, use_cache=False)
    finally:
        for module in modules:
            uninstall(module)
    return seen


def _attention(
    module: nn.Module,
    query: Tensor,  # (1, heads, tokens, dim)
    key: Tensor,  # (1, kv_heads, tokens, dim)
    value: Tensor,  # (1, kv_heads, tokens, value_dim)
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | object | None = _UNSAID,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: Any,
) -> tuple[Tensor, None]:
    """Attend as transformers asks for it; the result is of shape (1, tokens, heads, value_dim)."""
    if attention_mask is not None:  # none is made for this interface: the model computed one itself
        raise ValueError("it masks attention by what it computes")
    # None is an answer too: such a layer sees everything, whatever its module says
    window = getattr(module, "sliding_window", None) if sliding_window is _UNSAID else sliding_window
    latent = latent_of(module)
    how = Attention(
        scaling=scaling if scaling is not None else query.shape[-1] ** -0.5,
        window=window if isinstance(window, int) and window else None,
        chunk=_chunk_of(module),
        softcap=softcap,
        sinks=s_aux,
        latent=latent is not None,
    )
    if latent is None:
        return attend(module, query, key, value, how), None
    return latent.expand(attend(module, latent.absorb(query), key, value, how)), None


def _chunk_of(module: nn.Module) -> int | None:
    """Return how long the chunks are which a module's attention stays within; None: there are none."""
    config: Any = getattr(module, "config", None)
    index = getattr(module, "layer_idx", None)
    types = getattr(config, "layer_types", None)
    if types is None or index is None or index >= len(types) or types[index] != CHUNKED:
        return None
    size: int = config.attention_chunk_size
    return size
