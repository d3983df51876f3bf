"""What is compiled for a Hopper GPU of norms, activations, linears and the choice of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

# First of all: it has to be said before triton is imported that nothing is interpreted
from tests.unit.inference.kernels_gpu import hopper  # noqa: F401  # isort: skip

import torch
from torch import Tensor

from inference.gpu.batch import Draws
from inference.gpu.slots import DeviceState, MirroredTable
from inference.kernels.gpu.activation import gated
from inference.kernels.gpu.gated_linear import gated_linear, gated_tiles
from inference.kernels.gpu.invariant import invariant_linear
from inference.kernels.gpu.linear import small_linear, tiles
from inference.kernels.gpu.norm import add_rms_norm
from inference.kernels.gpu.quantised_linear import expand_blocks, quantised_linear, quantised_tiles
from inference.kernels.gpu.sampling import sample
from inference.kernels.gpu.shaping import shape
from inference.quantised.bits4 import whole_numbers
from inference.quantised.bits8 import Bits8
from inference.quantised.blocks import Blocks
from inference.quantised.codes import Codes

PROCESSORS = 132  # of an H100
BF16, F32 = torch.bfloat16, torch.float32


def choose(vocabulary: int) -> None:
    """Launch the choice of three tokens."""
    integers = torch.zeros(3, dtype=torch.int64)
    draws = Draws(integers, integers, torch.zeros(3), torch.zeros(3, dtype=torch.bool))
    sample(_empty(3, vocabulary), draws)


def filter_(vocabulary: int) -> None:
    """Launch the choice of three tokens by filters and penalties."""
    state = DeviceState(MirroredTable(8, 4), torch.device("cpu"), vocabulary)
    slots = torch.zeros(3, dtype=torch.int32)
    shape(_empty(3, vocabulary), state.wish(slots, ahead=1), torch.empty(3, 2, dtype=torch.float64))


def multiply(rows: int, outputs: int, inner: int, dtype: torch.dtype) -> None:
    """Launch a linear of few rows with all of its tiles."""
    for tile in tiles(rows, outputs, inner, dtype, PROCESSORS):
        x, weight = _empty(rows, inner, dtype=dtype), _empty(outputs, inner, dtype=dtype)
        small_linear(x, weight, None, tile=tile)


def multiply_gated(rows: int, outputs: int, inner: int) -> None:
    """Launch a linear and its gate with all of their tiles."""
    for tile in gated_tiles(rows, outputs, inner, BF16, PROCESSORS):
        gated_linear(_empty(rows, inner), _empty(2 * outputs, inner), None, "silu", tile=tile)


def multiply_quantised(
    rows: int,
    outputs: int,
    inner: int,
    group: int,
    *,
    levels: bool = False,
    zeros: bool = False,
    eight: torch.dtype | None = None,
) -> None:
    """Launch a linear with weights in 4 bits, or of `eight`, with all of its tiles, and expand them."""
    scales = torch.ones(outputs, inner // group)
    codes = torch.zeros(outputs, inner // 2, dtype=torch.uint8)
    points = torch.arange(outputs)[:, None].expand_as(scales) % 16 if zeros else 8
    weight: Codes = whole_numbers(codes, inner, group, scales, points)
    if eight is not None:
        weight = Bits8(torch.zeros(outputs, inner).to(eight), group, scales)
    elif levels:
        weight = replace(weight, levels=torch.linspace(-1, 1, 16) ** 3)
    blocks = Blocks.of(weight, BF16)
    for tile in quantised_tiles(rows, blocks, PROCESSORS):
        quantised_linear(_empty(rows, inner), blocks, None, tile=tile)
    expand_blocks(blocks, BF16)


def multiply_any(outputs: int, inner: int, dtype: torch.dtype) -> None:
    """Launch a linear of any number of rows."""
    invariant_linear(_empty(3, inner, dtype=dtype), _empty(outputs, inner, dtype=dtype), None)


def _empty(*shape: int, dtype: torch.dtype = BF16) -> Tensor:
    return torch.empty(*shape, dtype=dtype)


ROWS: dict[str, Callable[[], object]] = {
    "norm": lambda: add_rms_norm(_empty(2, 4096), _empty(2, 4096), _empty(4096, dtype=F32), 1e-6),
    "gate": lambda: [gated(_empty(2, 9728), name) for name in ("silu", "gelu_tanh", "gelu")],
    "choose": partial(choose, 128256),
    "choose, odd": partial(choose, 50257),
    "filter": partial(filter_, 128256),
    "filter, odd": partial(filter_, 50257),
    "linear of 1": partial(multiply, 1, 4096, 14336, BF16),
    "linear of 16": partial(multiply, 16, 28672, 4096, BF16),
    "linear of 16, in parts": partial(multiply, 16, 896, 4864, BF16),
    "linear of 16 in float32": partial(multiply, 16, 896, 896, F32),
    "gated linear of 1": partial(multiply_gated, 1, 4864, 896),
    "gated linear of 16": partial(multiply_gated, 16, 14336, 4096),
    "4 bits of 1": partial(multiply_quantised, 1, 4096, 14336, 128),
    "4 bits of 1, zero points": partial(multiply_quantised, 1, 896, 4864, 64, zeros=True),
    "4 bits of 1, levels": partial(multiply_quantised, 1, 4096, 4096, 16, levels=True),
    "4 bits of 16": partial(multiply_quantised, 16, 28672, 4096, 128),
    "4 bits of 16, zero points": partial(multiply_quantised, 16, 896, 4864, 128, zeros=True),
    "4 bits of 64, levels": partial(multiply_quantised, 64, 4096, 4096, 64, levels=True),
    "4 bits of 256, short groups": partial(multiply_quantised, 256, 6144, 4096, 32),
    "int8 of 1": partial(multiply_quantised, 1, 4096, 14336, 14336, eight=torch.int8),
    "E4M3 of 1, blocks": partial(multiply_quantised, 1, 4096, 4096, 128, eight=torch.float8_e4m3fn),
    "E4M3 of 64": partial(multiply_quantised, 64, 4096, 14336, 14336, eight=torch.float8_e4m3fn),
    "E5M2 of 16": partial(multiply_quantised, 16, 6144, 4096, 4096, eight=torch.float8_e5m2),
    "linear of any": partial(multiply_any, 28672, 4096, BF16),
    "linear of any, narrow": partial(multiply_any, 896, 896, BF16),
    "linear of any in float32": partial(multiply_any, 896, 100, F32),
}
