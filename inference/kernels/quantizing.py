"""Weights in int8 or in its upper six bits: symmetric, with a scale for each output."""

from __future__ import annotations

import torch
from torch import Tensor

_SMALLEST_SCALE = 1e-30  # a row whose weights are smaller is zeros
_ROWS_AT_ONCE = 4096  # to bound memory


def quantize_rows(weight: Tensor, step: int = 1) -> tuple[Tensor, Tensor]:
    """Return a weight (n, k) in int8, as multiples of `step`, and its scales (n) in float32."""
    most = 127 // step * step
    rows = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(weight.shape[0])
    for first in range(0, weight.shape[0], _ROWS_AT_ONCE):
        part = weight[first : first + _ROWS_AT_ONCE].float()
        scale = (part.abs().amax(1) / most).clamp(min=_SMALLEST_SCALE)
        rows[first : first + _ROWS_AT_ONCE] = ((part / scale[:, None] / step).round() * step).to(torch.int8)
        scales[first : first + _ROWS_AT_ONCE] = scale
    return rows, scales


def sums_of_rows(rows: Tensor, *, paired: bool) -> Tensor:
    """Return what the C extension subtracts for each row (n, k) of int8: int32 (n).

    128 times its sum, as inputs have 128 added; or `paired`, the products of neighbours (linear_int8.inc.h).
    """
    if not paired:
        return rows.sum(1, dtype=torch.int32) * 128
    sums = torch.empty(rows.shape[0], dtype=torch.int32)
    for first in range(0, rows.shape[0], _ROWS_AT_ONCE):
        part = rows[first : first + _ROWS_AT_ONCE].short()
        half = part.shape[1] // 2  # an odd last one has zero beside it
        products = part[:, : 2 * half : 2] * part[:, 1::2]
        sums[first : first + _ROWS_AT_ONCE] = products.sum(1, dtype=torch.int32)
    return sums
