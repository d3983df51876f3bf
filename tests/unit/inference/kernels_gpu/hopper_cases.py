"""What is compiled for a Hopper GPU: each kernel in the forms that differ most; see `hopper`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

# First of all: it has to be said before triton is imported that nothing is interpreted
from tests.unit.inference.kernels_gpu.hopper import main  # isort: skip

import torch
from torch import Tensor

from inference.gpu.batch import DeviceBatch
from inference.kernels.gpu.attention import paged_attention
from inference.kernels.gpu.rope import rope_and_write, write
from inference.kernels.gpu.slots import gather, scatter, settle
from inference.kernels.gpu.tiles import deterministic_tiles, query_tile
from inference.kernels.reference import Attention
from tests.unit.inference.kernels_gpu.hopper_experts import EXPERTS
from tests.unit.inference.kernels_gpu.hopper_latents import LATENTS
from tests.unit.inference.kernels_gpu.hopper_rows import ROWS
from tests.unit.inference.kernels_gpu.hopper_states import STATES

PLAIN = Attention(scaling=0.1)
BF16, F32 = torch.bfloat16, torch.float32


def attend(
    heads: int,
    kv_heads: int,
    dim: int,
    value_dim: int,
    longest: int,
    *,
    splits: int = 1,
    dtype: torch.dtype = BF16,
    how: Attention = PLAIN,
    deterministic: bool = False,
) -> None:
    """Launch attention of eight sequences."""
    size, widest = dtype.itemsize, max(dim, value_dim)
    tile = query_tile(heads, kv_heads, longest, dim=widest, itemsize=size, deterministic=deterministic)
    indices = torch.zeros(2, 64, dtype=torch.int32)
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
        tile=tile,
        rows=None,
        longest=longest,
        splits=splits,
    )
    keys, values = (torch.empty(4, 16, kv_heads, each, dtype=dtype) for each in (dim, value_dim))
    tiles = deterministic_tiles(widest, size) if deterministic else None
    paged_attention(torch.empty(8, heads, dim, dtype=dtype), keys, values, batch, how, tiles=tiles)


def rotate(dim: int, rotary: int | None, *, interleaved: bool = False, normed: bool = False) -> None:
    """Launch the rotation of eight tokens."""
    table = None if rotary is None else torch.empty(64, rotary)
    norm = torch.empty(dim) if normed else None
    cache = torch.empty(4, 16, 8, dim, dtype=BF16)
    rope_and_write(
        torch.empty(8, 48 * dim, dtype=BF16), table, table, _places(), _places(), cache, cache, 32, 8,
        interleaved=interleaved, query_norm=norm, key_norm=norm, eps=1e-6,
    )  # fmt: skip


def keep() -> None:
    """Launch the writing of eight tokens."""
    new, cache = torch.empty(8, 4, 192, dtype=BF16), torch.empty(4, 16, 4, 192, dtype=BF16)
    write(new, new, _places(), cache, cache)


def step_slots() -> None:
    """Launch what is before and after a graph's forward of eight decodes."""
    slots, tokens, numbers = torch.zeros(8, dtype=torch.int32), _places(), torch.empty(8)
    tables = torch.zeros(8, 64, dtype=torch.int32)
    drawn, wishes = torch.empty(8, 2, dtype=torch.float64), torch.empty(8, 8, dtype=torch.float64)
    gather(slots, tokens, slots, tables, tokens, numbers, numbers > 0, page=16)
    scatter(slots, slots, tokens, numbers, tokens, tokens, slots, drawn)
    settle(slots, drawn, slots, tokens, wishes, torch.empty(8, 128256, dtype=torch.int16))


def _places() -> Tensor:
    return torch.zeros(8, dtype=torch.int64)


EVERYTHING = Attention(scaling=0.1, window=100, softcap=30.0, sinks=torch.empty(14))
SLOPED = Attention(scaling=0.1, slopes=torch.empty(32))
CHUNKED = Attention(scaling=0.1, chunk=8192)
CASES: dict[str, Callable[[], object]] = {
    "decode with slopes": partial(attend, 32, 32, 128, 128, 1, splits=16, how=SLOPED),
    "prompt with slopes": partial(attend, 32, 32, 128, 128, 512, how=SLOPED),
    "decode in chunks": partial(attend, 40, 8, 128, 128, 1, splits=16, how=CHUNKED),
    "prompt in chunks": partial(attend, 40, 8, 128, 128, 512, how=CHUNKED),
    "decode 128": partial(attend, 32, 8, 128, 128, 1, splits=16),
    "decode 64": partial(attend, 14, 2, 64, 64, 1, splits=32),
    "decode 64, groups of 4": partial(attend, 32, 8, 64, 64, 1, splits=32),
    "decode 32": partial(attend, 4, 2, 32, 32, 1, splits=4),
    "decode 32 of float32": partial(attend, 4, 2, 32, 32, 1, splits=4, dtype=F32),
    "decode, everything": partial(attend, 14, 2, 80, 80, 1, splits=4, how=EVERYTHING),
    "prompt 32": partial(attend, 4, 2, 32, 32, 50),
    "prompt 32 of float32": partial(attend, 4, 2, 32, 32, 50, dtype=F32),
    "prompt 64": partial(attend, 14, 2, 64, 64, 512),
    "prompt 128": partial(attend, 32, 8, 128, 128, 512),
    "prompt 256": partial(attend, 8, 4, 256, 256, 512),
    "prompt, everything": partial(attend, 14, 2, 80, 80, 512, how=EVERYTHING),
    "deterministic 32": partial(attend, 4, 2, 32, 32, 50, deterministic=True),
    "deterministic 64": partial(attend, 14, 2, 64, 64, 1, deterministic=True),
    "deterministic 128": partial(attend, 32, 8, 128, 128, 1, deterministic=True),
    "prompt 64 of float32": partial(attend, 9, 3, 64, 64, 512, dtype=F32),
    "decode 128 of float32": partial(attend, 9, 3, 128, 128, 1, splits=4, dtype=F32),
    "decode of 71 heads": partial(attend, 71, 1, 64, 64, 1, splits=8),
    "decode of 128 heads": partial(attend, 128, 1, 256, 256, 1, splits=2),
    "rotate": partial(rotate, 128, 128, normed=True),
    "rotate neighbours": partial(rotate, 80, 32, interleaved=True),
    "write": keep,
    "slots": step_slots,
    **ROWS,
    **STATES,
    **EXPERTS,
    **LATENTS,
}

if __name__ == "__main__":
    main(CASES)
