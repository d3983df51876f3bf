"""What is compiled for a Hopper GPU of mixtures' experts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

# First of all: it has to be said before triton is imported that nothing is interpreted
from tests.unit.inference.kernels_gpu import hopper  # noqa: F401  # isort: skip

import torch

from inference.gpu.mixtures import ExpertWeight, Routing
from inference.kernels.gating import Gating
from inference.kernels.gpu.activation import gated_by
from inference.kernels.gpu.expert_linear import expert_linear
from inference.kernels.gpu.expert_tiles import expert_tiles, fixed_tile
from inference.kernels.gpu.routing import combine, route
from inference.quantised.bits4 import whole_numbers
from inference.quantised.bits8 import Bits8
from inference.quantised.codes import Codes
from tests.unit.inference.kernels_gpu.hopper_rows import PROCESSORS

BF16, F32 = torch.bfloat16, torch.float32


def assign(experts: int, chosen: int, scores: torch.dtype) -> None:
    """Launch what is before and after the experts, for one token and for several."""
    routing = route(torch.zeros(3, chosen, dtype=torch.int64), experts)
    found = torch.empty(3 * chosen, 2048, dtype=BF16)
    combine(found, routing, torch.empty(3, chosen, dtype=scores))
    combine(found, Routing(routing.index[:1], experts), torch.empty(1, chosen, dtype=scores))
    gated_by(found, Gating(alternating=True, limit=7.0, factor=1.702, offset=1.0))


def multiply(
    tokens: int, chosen: int, shape: tuple[int, int, int], dtype: torch.dtype = BF16, *, turned: bool = False
) -> None:
    """Launch experts of a shape (experts, n, k) with two of their tiles, the fixed one, and with a gate."""
    experts, outputs, inner = shape
    numbers = torch.empty(shape, dtype=dtype)
    if turned:
        numbers = torch.empty(experts, inner, outputs, dtype=dtype).transpose(1, 2)
    bias = torch.empty(experts, outputs, dtype=dtype) if turned else None
    _launch(tokens, chosen, ExpertWeight(numbers, experts, bias), dtype)


def multiply_codes(
    tokens: int, chosen: int, shape: tuple[int, int, int], group: int, *, kind: str = "counted"
) -> None:
    """Launch the same of weights in few bits."""
    experts, outputs, inner = shape
    scales = torch.ones(outputs, inner // group)
    codes = torch.zeros(outputs, inner // 2, dtype=torch.uint8)
    points = torch.arange(outputs)[:, None].expand_as(scales) % 16 if kind == "zeros" else 8
    one: Codes = whole_numbers(codes, inner, group, scales, points)
    if kind == "e4m3":
        one = Bits8(torch.zeros(outputs, inner).to(torch.float8_e4m3fn), group, scales)
    elif kind == "levels":
        one = replace(one, levels=torch.linspace(-1, 1, 16) ** 3)
    weight = ExpertWeight.of_codes([one] * experts, BF16)
    assert weight is not None
    _launch(tokens, chosen, weight, BF16)


def _launch(tokens: int, chosen: int, weight: ExpertWeight, dtype: torch.dtype) -> None:
    routing = route(torch.zeros(tokens, chosen, dtype=torch.int64), weight.experts)
    if tokens == 1:
        routing = Routing(routing.index, weight.experts)
    tiles = list(expert_tiles(tokens, chosen, weight, PROCESSORS))[:2]
    x, rows = (torch.empty(count, weight.inputs, dtype=dtype) for count in (tokens, routing.pairs))
    for tile in [*tiles, *([] if tokens == 1 else [fixed_tile(weight)])]:
        expert_linear(x, weight, routing, True, tile=tile)
    gate = Gating() if weight.bias is None else Gating(alternating=True, limit=7.0, factor=1.702, offset=1.0)
    expert_linear(x, weight, routing, True, gate, tile=tiles[0])
    expert_linear(rows, weight, routing, False, tile=tiles[0])


_QWEN, _OSS, _SMALL = (128, 1536, 2048), (32, 5760, 2880), (8, 256, 512)
EXPERTS: dict[str, Callable[[], object]] = {
    "experts' routing": partial(assign, 128, 8, BF16),
    "experts' routing, float32": partial(assign, 256, 10, F32),
    "experts of 1": partial(multiply, 1, 8, _QWEN),
    "experts of 16": partial(multiply, 16, 8, _QWEN),
    "experts of 512": partial(multiply, 512, 8, _QWEN),
    "experts of 4096": partial(multiply, 4096, 8, _QWEN),
    "experts of 1, turned": partial(multiply, 1, 4, _OSS, turned=True),
    "experts of 16, turned": partial(multiply, 16, 4, _OSS, turned=True),
    "experts of 4096, turned": partial(multiply, 4096, 4, _OSS, turned=True),
    "experts of 1 in float32": partial(multiply, 1, 2, _SMALL, F32),
    "experts of 64 in float32": partial(multiply, 64, 2, _SMALL, F32),
    "experts in 4 bits of 1": partial(multiply_codes, 1, 8, (8, 1536, 2048), 128, kind="zeros"),
    "experts in 4 bits of 16": partial(multiply_codes, 16, 8, (8, 1536, 2048), 128, kind="zeros"),
    "experts in 4 bits of 512": partial(multiply_codes, 512, 2, (8, 1536, 2048), 128),
    "experts in MXFP4 of 1": partial(multiply_codes, 1, 4, (8, 5760, 2880), 32, kind="levels"),
    "experts in MXFP4 of 16": partial(multiply_codes, 16, 4, (8, 5760, 2880), 32, kind="levels"),
    "experts in MXFP4 of 512": partial(multiply_codes, 512, 4, (8, 5760, 2880), 32, kind="levels"),
    "experts in E4M3 of 16": partial(multiply_codes, 16, 8, (8, 1536, 2048), 128, kind="e4m3"),
}
