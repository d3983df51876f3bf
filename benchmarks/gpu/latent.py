"""Attention over latents: single operations beside their floor, and a model beside itself without them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.clock import Clock
from benchmarks.gpu.driving import driver
from benchmarks.gpu.kernels import choose_ops, microseconds
from benchmarks.gpu.models import LatentShape
from benchmarks.gpu.serving import Sizes, decode_row, prefill
from inference.gpu.batch import DeviceBatch, query_blocks
from inference.gpu.ops import HeadShape
from inference.kernels.reference import Attention
from inference.kv_cache.blocks import PAGE, blocks_for

Row = dict[str, Any]

_WITHOUT = {
    "everything on": {},
    "every head kept": {"latent_cache": False},
    "deterministic": {"deterministic": True},
}


@dataclass(frozen=True, slots=True)
class Heads:
    """The sizes of a layer's attention."""

    heads: int
    nope: int
    value: int
    latent: int = 512
    turned: int = 64


HEADS = {
    "deepseek-v2-lite": Heads(16, 128, 128),
    "glm-4.7-flash": Heads(20, 192, 256),
    "minicpm3-4b": Heads(40, 64, 64, 256, 32),
    "deepseek-v3": Heads(128, 128, 128),
}
TINY = {"tiny": Heads(4, 16, 16, 32, 16)}


def operations(
    shapes: dict[str, Heads],
    device: torch.device,
    dtype: torch.dtype,
    contexts: list[int],
    ceilings: Ceilings,
    clock: Clock,
) -> Iterator[Row]:
    """Yield decodes, and a prompt of so many tokens, by attention and by products with each head's weight."""
    for name, heads in shapes.items():
        for context in contexts:
            for batch in (1, 64) if context < 8192 else (1, 16):
                clock.need(2, "attention over latents")
                read = batch * context * (heads.latent + heads.turned) * dtype.itemsize
                multiplied = 2 * batch * context * heads.heads * (2 * heads.latent + heads.turned)
                yield _row("decode", name, batch, context, ceilings, read, multiplied) | {
                    "us": _attend(heads, device, dtype, batch, context, 1)
                }
            seen = context * (context + 1) // 2
            multiplied = 2 * seen * heads.heads * (2 * heads.latent + heads.turned)
            yield _row("prompt", name, 1, context, ceilings, 0, multiplied) | {
                "us": _attend(heads, device, dtype, 1, context, context)
            }
        for rows in (1, 64, 512):
            yield _products(name, heads, device, dtype, rows, ceilings)


def serve(
    shape: LatentShape,
    device: torch.device,
    dtype: torch.dtype,
    sizes: Sizes,
    ceilings: Ceilings,
    clock: Clock,
) -> Iterator[Row]:
    """Yield decodes and prompts of a model over latents, over every head's keys and values, deterministic."""
    context = max(sizes.decodes)
    for name, off in _WITHOUT.items():
        if off.get("deterministic") and device.type == "cpu":
            continue
        settings = {**sizes.settings, "max_batch_size": max(sizes.switched), **off}
        with driver(shape, device, dtype, clock, **settings) as engine:
            for batch, mean, seconds in engine.decode(list(sizes.switched), context, sizes.steps):
                row = decode_row(shape, ceilings, dtype, batch, mean, seconds)
                yield {**row, "without": name}
            yield {**prefill(engine, shape, ceilings, sizes), "without": name}


def _row(
    what: str, name: str, batch: int, context: int, ceilings: Ceilings, read: int, multiplied: int
) -> Row:
    floor = max(read / ceilings.bytes, multiplied / ceilings.flops)
    return {
        "what": f"latents, {what}",
        "heads": name,
        "batch": batch,
        "context": context,
        "floor_us": round(1e6 * floor, 2),
        "bound": "cache" if read / ceilings.bytes >= multiplied / ceilings.flops else "products",
    }


def _attend(
    heads: Heads, device: torch.device, dtype: torch.dtype, batch: int, context: int, longest: int
) -> dict[str, float | str]:
    """Return the microseconds of attention by each way that there is."""
    found: dict[str, float | str] = {}
    for name, deterministic in (("kernel", False), ("deterministic", True)):
        if deterministic and device.type == "cpu":
            continue
        run = _call(heads, device, dtype, batch, context, longest, deterministic=deterministic)
        found[name] = microseconds(run, device)
    return found


def _call(
    heads: Heads,
    device: torch.device,
    dtype: torch.dtype,
    batch: int,
    context: int,
    longest: int,
    *,
    deterministic: bool,
) -> Callable[[], Tensor]:
    ops, pages, dim = (
        choose_ops(device, deterministic=deterministic),
        blocks_for(context),
        heads.latent + heads.turned,
    )
    size = HeadShape(heads.heads, 1, dim, dtype.itemsize, latent=True)
    keys = torch.randn(batch * pages, PAGE, 1, dim, device=device).to(dtype)
    query = torch.randn(batch * longest, heads.heads, dim, device=device).to(dtype)
    at = torch.arange(batch + 1, dtype=torch.int32, device=device)
    tile = ops.tile(size, longest)
    blocks = query_blocks(torch.full((batch,), longest).numpy(), tile)
    none = torch.empty(0, dtype=torch.int64, device=device)
    step = DeviceBatch(
        ids=none,
        positions=none,
        places=none,
        tables=torch.randperm(batch * pages, device=device).view(batch, pages).int(),
        slots=at[:-1],
        starts=at * longest,
        lengths=torch.full_like(at[:-1], context),
        query_blocks=torch.from_numpy(blocks).int().to(device),
        tile=tile,
        rows=None,
        longest=longest,
        splits=ops.splits(size, batch, longest),
    )
    how = Attention(scaling=dim**-0.5, latent=True)
    return lambda: ops.paged_attention(query, keys, keys[..., : heads.latent], step, how)


def _products(
    name: str, heads: Heads, device: torch.device, dtype: torch.dtype, rows: int, ceilings: Ceilings
) -> Row:
    """Return what it takes to make queries of latents, and values of sums of them."""
    weight = torch.randn(heads.heads, heads.nope + heads.value, heads.latent, device=device).to(dtype)
    query, found = (
        torch.randn(rows, heads.heads, inner, device=device).to(dtype) for inner in (heads.nope, heads.latent)
    )
    calls: dict[str, Callable[[], object]] = {}
    for way, deterministic in (("cuBLAS", False), ("invariant", True)):
        if deterministic and device.type == "cpu":
            continue
        multiply = choose_ops(device, deterministic=deterministic).multiply_heads
        calls[f"absorb, {way}"] = partial(multiply, query, weight[:, : heads.nope].transpose(1, 2))
        calls[f"expand, {way}"] = partial(multiply, found, weight[:, heads.nope :])
    floor = max(weight.numel() * dtype.itemsize / ceilings.bytes, 2 * weight.numel() * rows / ceilings.flops)
    return {
        "what": "latents, products",
        "heads": name,
        "rows": rows,
        "floor_us": round(1e6 * floor, 2),  # of both
        "us": {way: microseconds(run, device) for way, run in calls.items()},
    }
