"""Weights in int8 or in its upper six bits: symmetric, with a scale for each output."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

_SMALLEST_SCALE = 1e-30  # a row whose weights are smaller is zeros
_AT_ONCE = 256 * 1024  # numbers for each thread, which stay in a cache


def quantize_rows(weight: Tensor, step: int = 1) -> tuple[Tensor, Tensor]:
    """Return a weight (n, k) in int8, as multiples of `step`, and its scales (n) in float32."""
    most = 127 // step * step
    rows = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(weight.shape[0])
    for some in _slices(weight):
        part = weight[some].float()
        scale = (part.abs().amax(1) / most).clamp(min=_SMALLEST_SCALE)
        rows[some] = ((part / scale[:, None] / step).round() * step).to(torch.int8)
        scales[some] = scale
    return rows, scales


def sums_of_rows(rows: Tensor, *, paired: bool) -> Tensor:
    """Return what the C extension subtracts for each row (n, k) of int8: int32 (n).

    128 times its sum, as inputs have 128 added; or `paired`, the products of neighbours (linear_int8.inc.h).
    """
    if not paired:
        return rows.sum(1, dtype=torch.int32) * 128
    sums = torch.empty(rows.shape[0], dtype=torch.int32)
    for some in _slices(rows):
        part = rows[some].short()
        half = part.shape[1] // 2  # an odd last one has zero beside it
        products = part[:, : 2 * half : 2] * part[:, 1::2]
        sums[some] = products.sum(1, dtype=torch.int32)
    return sums


def _slices(weight: Tensor) -> Iterator[slice]:
    """Yield pieces of a weight's rows, each of so many numbers as are worked on at once.

    Pieces of tens of megabytes took the allocator apart: experts, packed between them, took twice the memory.
    """
    rows = max(_AT_ONCE * torch.get_num_threads() // max(weight.shape[1], 1), 1)
    for first in range(0, weight.shape[0], rows):
        yield slice(first, first + rows)
