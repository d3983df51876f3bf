"""Single operations beside what torch has for them: attention over contexts, linears of few and many rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import linear, scaled_dot_product_attention

from benchmarks.gpu.ceilings import Ceilings
from benchmarks.gpu.clock import Clock, call_seconds
from benchmarks.gpu.models import Shape
from inference.gpu.batch import DeviceBatch, query_blocks
from inference.gpu.ops import HeadShape, Multiply, Ops, torch_ops, triton_ops
from inference.kernels.reference import Attention
from inference.kv_cache.blocks import PAGE, blocks_for
from inference.quantised.bits4 import Bits4, whole_numbers
from inference.quantised.blocks import Blocks
from inference.quantised.rounding4 import LEVELS

Row = dict[str, Any]

_FRESH_BYTES = 256 << 20  # of weights in turn: more than any cache keeps


def choose_ops(device: torch.device, *, deterministic: bool = False) -> Ops:
    """Return the operations that a device is served by."""
    return triton_ops(deterministic=deterministic) if device.type == "cuda" else torch_ops()


def attention(
    shape: Shape,
    device: torch.device,
    dtype: torch.dtype,
    contexts: list[int],
    ceilings: Ceilings,
    clock: Clock,
) -> Iterator[Row]:
    """Yield decodes over contexts by paged attention, and by torch's over keys that lie side by side."""
    for context in contexts:
        for batch in (1, 64) if context < 8192 else (1, 16):
            clock.need(2, "attention")
            read = 2 * batch * context * int(shape.config["num_key_value_heads"]) * shape.dim * dtype.itemsize
            yield {
                "what": "attention",
                "batch": batch,
                "context": context,
                "paged_us": microseconds(_paged(shape, device, dtype, batch, context), device),
                "torch_us": microseconds(_dense(shape, device, dtype, batch, context), device),
                "floor_us": round(1e6 * read / ceilings.bytes, 2),
            }


def linears(
    shape: Shape, device: torch.device, dtype: torch.dtype, rows: list[int], ceilings: Ceilings, clock: Clock
) -> Iterator[Row]:
    """Yield a layer's linears and the head by cuBLAS, by the kernels for few rows, by the invariant one."""
    ops, invariant = choose_ops(device), choose_ops(device, deterministic=True)
    head = int(shape.config["vocab_size"]), int(shape.config["hidden_size"])
    for name, (outputs, inner) in {**shape.linears, "head": head}.items():
        for count in rows:
            clock.need(2, "linears")
            ways: dict[str, Multiply] = {"cuBLAS": linear}
            like = torch.empty(outputs, inner, dtype=dtype, device="meta")
            ways |= {way.name: way.multiply for way in ops.ways(count, like)}
            ways["invariant"] = invariant.linear
            floor = max(
                (outputs * inner + count * (outputs + inner)) * dtype.itemsize / ceilings.bytes,
                2 * outputs * inner * count / ceilings.flops,
            )
            yield {
                "what": "linear",
                "linear": name,
                "shape": [outputs, inner],
                "rows": count,
                "floor_us": round(1e6 * floor, 2),
                "us": _times(ways, count, outputs, inner, device, dtype),
            }


def linears_in_4_bits(
    shape: Shape, device: torch.device, dtype: torch.dtype, rows: list[int], ceilings: Ceilings, clock: Clock
) -> Iterator[Row]:
    """Yield a layer's linears with weights in 4 bits: expanded, by the kernels, and in 16 bits by cuBLAS."""
    ops = choose_ops(device)
    for name, (outputs, inner) in shape.linears.items():
        for form, weight in _in_4_bits(outputs, inner, device, dtype).items():
            for count in rows:
                clock.need(2, "linears in 4 bits")
                x, wide = torch.randn(count, inner, device=device).to(dtype), weight.expand()
                ways = {way.name: way.multiply for way in ops.ways(count, weight)}
                calls = {
                    "in 16 bits": partial(linear, x, wide),
                    "expanded": partial(ops.linear, x, weight, None),
                }
                calls |= {each: partial(multiply, x, weight, None) for each, multiply in ways.items()}
                yield {
                    "what": f"linear, {form}",
                    "linear": name,
                    "shape": [outputs, inner],
                    "rows": count,
                    "floor_us": round(1e6 * weight.nbytes / ceilings.bytes, 2),
                    "us": {each: microseconds(run, device) for each, run in calls.items()},
                }


def _in_4_bits(outputs: int, inner: int, device: torch.device, dtype: torch.dtype) -> dict[str, Blocks]:
    """Return random weights as AWQ and bitsandbytes have them."""
    codes = torch.randint(0, 256, (outputs, -(-inner // 2)), dtype=torch.uint8)
    scales, zeros = (
        torch.rand(outputs, -(-inner // 128)) / 100,
        torch.randint(0, 16, (outputs, -(-inner // 128))),
    )
    levels = Bits4(codes, inner, 64, torch.rand(outputs, -(-inner // 64)), torch.tensor(LEVELS["nf4"]))
    awq = whole_numbers(codes, inner, 128, scales, zeros)
    return {name: Blocks.of(each, dtype).to(device) for name, each in (("awq", awq), ("nf4", levels))}


def gates(shape: Shape, device: torch.device, dtype: torch.dtype, clock: Clock) -> Iterator[Row]:
    """Yield an MLP's first linear and its gate for few rows: one after the other, and in one kernel."""
    from inference.kernels.gpu.gated_linear import gated_linear, gated_tiles
    from inference.kernels.gpu.linear import processors

    ops = choose_ops(device)
    outputs, inner = shape.linears["gate_up"]
    for rows in (1, 8):
        clock.need(2, "gates")
        ways: dict[str, Multiply] = {"cuBLAS, then the gate": lambda *of: ops.gated(linear(*of), "silu")}
        for tile in gated_tiles(rows, outputs // 2, inner, dtype, processors(device)):
            ways[f"{tile.outputs}x{tile.inner}"] = partial(gated_linear, activation="silu", tile=tile)
        yield {
            "what": "linear and gate",
            "shape": [outputs, inner],
            "rows": rows,
            "us": _times(ways, rows, outputs, inner, device, dtype),
        }


def _times(
    ways: dict[str, Multiply],
    rows: int,
    outputs: int,
    inner: int,
    device: torch.device,
    dtype: torch.dtype,
) -> dict[str, float | str]:
    copies = (
        min(max(_FRESH_BYTES // (outputs * inner * dtype.itemsize), 1), 64) if device.type == "cuda" else 1
    )
    weights = [torch.randn(outputs, inner, device=device).to(dtype) for _ in range(copies)]
    x = torch.randn(rows, inner, device=device).to(dtype)
    calls: dict[str, Callable[[], object]] = {
        name: partial(_each, multiply, x, weights) for name, multiply in ways.items()
    }
    return {name: microseconds(run, device, copies) for name, run in calls.items()}


def _each(multiply: Multiply, x: Tensor, weights: list[Tensor]) -> list[Tensor]:
    return [multiply(x, weight, None) for weight in weights]


def microseconds(run: Callable[[], object], device: torch.device, calls: int = 1) -> float | str:
    """Return what one of so many calls takes, or why there is no number: what can't be run is a finding."""
    try:
        return round(1e6 * call_seconds(run, device) / calls, 3)
    except Exception as error:
        return f"{type(error).__name__}: {error}"[:80]


def _paged(
    shape: Shape, device: torch.device, dtype: torch.dtype, batch: int, context: int
) -> Callable[[], Tensor]:
    ops, heads = choose_ops(device), int(shape.config["num_attention_heads"])
    kv_heads, pages = int(shape.config["num_key_value_heads"]), blocks_for(context)
    size = HeadShape(heads // kv_heads, kv_heads, shape.dim, dtype.itemsize)
    order = torch.randperm(batch * pages, device=device).view(batch, pages).int()
    keys, values = (
        torch.randn(batch * pages, PAGE, kv_heads, shape.dim, device=device).to(dtype) for _ in range(2)
    )
    query = torch.randn(batch, heads, shape.dim, device=device).to(dtype)
    at = torch.arange(batch + 1, dtype=torch.int32, device=device)
    tile = ops.tile(size, 1)
    blocks = torch.from_numpy(query_blocks(torch.ones(batch, dtype=torch.int64).numpy(), tile))
    step = DeviceBatch(
        ids=at.long(),
        positions=torch.full((batch,), context - 1, device=device),
        places=torch.zeros(batch, dtype=torch.int64, device=device),
        tables=order,
        slots=at[:-1],
        starts=at,
        lengths=torch.full_like(at[:-1], context),
        query_blocks=blocks.int().to(device),
        tile=tile,
        rows=None,
        longest=1,
        splits=ops.splits(size, batch, 1),
    )
    how = Attention(scaling=shape.dim**-0.5)
    return lambda: ops.paged_attention(query, keys, values, step, how)


def _dense(
    shape: Shape, device: torch.device, dtype: torch.dtype, batch: int, context: int
) -> Callable[[], Tensor]:
    heads, kv_heads = int(shape.config["num_attention_heads"]), int(shape.config["num_key_value_heads"])
    query = torch.randn(batch, heads, 1, shape.dim, device=device).to(dtype)
    keys, values = (
        torch.randn(batch, kv_heads, context, shape.dim, device=device).to(dtype) for _ in range(2)
    )
    backend = SDPBackend.FLASH_ATTENTION if device.type == "cuda" else SDPBackend.MATH

    def run() -> Tensor:
        with sdpa_kernel(backend):
            return scaled_dot_product_attention(query, keys, values, enable_gqa=True)

    return run
