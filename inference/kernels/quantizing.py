"""Weights in int8: symmetric, with a scale for each output."""

from __future__ import annotations

import torch
from torch import Tensor

_SMALLEST_SCALE = 1e-30  # a row whose weights are smaller is zeros
_ROWS_AT_ONCE = 4096  # to bound memory


def quantize_rows(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return a weight (n, k) in int8 and its scales (n) in float32."""
    rows = torch.empty(weight.shape, dtype=torch.int8)
    scales = torch.empty(weight.shape[0])
    for first in range(0, weight.shape[0], _ROWS_AT_ONCE):
        part = weight[first : first + _ROWS_AT_ONCE].float()
        scale = (part.abs().amax(1) / 127).clamp(min=_SMALLEST_SCALE)
        rows[first : first + _ROWS_AT_ONCE] = (part / scale[:, None]).round().to(torch.int8)
        scales[first : first + _ROWS_AT_ONCE] = scale
    return rows, scales
