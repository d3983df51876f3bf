"""The native kernels' KV cache behind transformers' attention interface: the level `native`."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from inference.kernels.native import Library
from inference.kernels.native_attention import NativeCacheLayer, NativeStep, arrays_of, cache_layers
from inference.kernels.reference import Attention
from inference.models.attending import install
from inference.models.paged import Probed
from inference.sequences.seen import limits_in
from inference.sequences.state import Pieces


def step_of(pieces: Pieces) -> NativeStep:
    """Return a step as C takes it."""
    return NativeStep(pieces.starts, pieces.stops, pieces.slots, pieces.table.blocks, limits_in(pieces))


class NativeCache:
    """Keys and values of all layers, in the C extension's own order; `dtype`: float32 or bfloat16."""

    def __init__(
        self, library: Library, layers: dict[nn.Module, Probed], blocks: int, dtype: torch.dtype
    ) -> None:
        self.step: NativeStep | None = None  # set before each forward
        caches = cache_layers(library, [probed.shape for probed in layers.values()], blocks, dtype)
        for module, cache in zip(layers, caches, strict=True):
            install(module, _Layer(self, cache))
        self.arrays = arrays_of(caches)

    def begin(self, pieces: Pieces) -> None:
        """Take the step that the next forward pass computes."""
        self.step = step_of(pieces)


class _Layer:
    def __init__(self, cache: NativeCache, layer: NativeCacheLayer) -> None:
        self._cache = cache
        self._layer = layer

    def attend(self, query: Tensor, key: Tensor, value: Tensor, how: Attention) -> Tensor:
        assert self._cache.step is not None, "the runner begins the step"
        return self._layer.attend(query, key, value, self._cache.step, how)
