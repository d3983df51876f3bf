"""Keys and values on a device: two tensors a layer, of pages."""

from __future__ import annotations

from collections.abc import Sequence as Several

import torch
from torch import Tensor

from inference.models.paged import LayerShape, empty_pages

LayerCache = tuple[Tensor, Tensor]  # keys (pages, PAGE, kv_heads, dim), and values


def device_cache(
    shapes: Several[LayerShape], blocks: int, dtype: torch.dtype, device: torch.device
) -> list[LayerCache]:
    """Return each layer's keys and values in `blocks` pages and one more, which is nobody's.

    The very last place is there for tokens that go nowhere: as an index, -1. Latent values are a view of
    the keys.
    """
    return [empty_pages(each, blocks + 1, dtype, device) for each in shapes]
