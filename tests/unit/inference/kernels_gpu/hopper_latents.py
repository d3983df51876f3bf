"""What is compiled for a Hopper GPU of attention over latents, and of products with each head's weight."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

# First of all: it has to be said before triton is imported that nothing is interpreted
from tests.unit.inference.kernels_gpu import hopper  # noqa: F401  # isort: skip

import torch

from inference.gpu.batch import DeviceBatch
from inference.kernels.gpu.invariant import invariant_heads
from inference.kernels.gpu.latent import latent_attention
from inference.kernels.gpu.latent_tiles import fixed_latent_tiles, latent_tile
from inference.kernels.reference import Attention

BF16, F32 = torch.bfloat16, torch.float32


def attend(
    heads: int,
    latent: int,
    turned: int,
    longest: int,
    *,
    splits: int = 1,
    dtype: torch.dtype = BF16,
    deterministic: bool = False,
) -> None:
    """Launch attention of eight sequences."""
    size, indices = dtype.itemsize, torch.zeros(2, 64, dtype=torch.int32)
    none = torch.empty(0, dtype=torch.int64)
    batch = DeviceBatch(
        ids=none,
        positions=none,
        places=none,
        tables=indices,
        slots=indices[0, :8],
        starts=indices[0, :9],
        lengths=indices[0, :8],
        query_blocks=indices[:, :8],
        tile=latent_tile(heads, longest, itemsize=size, deterministic=deterministic),
        rows=None,
        longest=longest,
        splits=splits,
    )
    query = torch.empty(8, heads, latent + turned, dtype=dtype)
    keys = torch.empty(4, 16, 1, latent + turned, dtype=dtype)
    how = Attention(scaling=0.1, latent=True)
    tiles = fixed_latent_tiles(size) if deterministic else None
    latent_attention(query, keys, latent, batch, how, tiles=tiles)


def multiply_heads(heads: int, outputs: int, inner: int, *, turned: bool) -> None:
    """Launch the products of eight tokens with each head's weight."""
    x, weight = torch.empty(8, heads, inner, dtype=BF16), torch.empty(heads, outputs, inner, dtype=BF16)
    invariant_heads(x, weight.transpose(1, 2).contiguous().transpose(1, 2) if turned else weight)


LATENTS: dict[str, Callable[[], object]] = {
    "latents, decode of 16 heads": partial(attend, 16, 512, 64, 1, splits=128),
    "latents, decode of 20 heads": partial(attend, 20, 512, 64, 1, splits=32),
    "latents, decode of 128 heads": partial(attend, 128, 512, 64, 1, splits=16),
    "latents, decodes unsplit": partial(attend, 16, 512, 64, 1),
    "latents, decode of 256": partial(attend, 40, 256, 32, 1, splits=16),
    "latents, decode of float32": partial(attend, 16, 512, 64, 1, splits=32, dtype=F32),
    "latents, prompt of 16 heads": partial(attend, 16, 512, 64, 512),
    "latents, prompt of 20 heads": partial(attend, 20, 512, 64, 512),
    "latents, prompt of 128 heads": partial(attend, 128, 512, 64, 512),
    "latents, prompt of 256": partial(attend, 40, 256, 32, 512),
    "latents, prompt of float32": partial(attend, 16, 512, 64, 512, dtype=F32),
    "latents, deterministic": partial(attend, 20, 512, 64, 1, deterministic=True),
    "heads to latents, invariant": partial(multiply_heads, 20, 512, 192, turned=True),
    "latents to heads, invariant": partial(multiply_heads, 20, 256, 512, turned=False),
}
