"""y = x @ weight.T + bias with the inner dimension cut in parts: a batch of products, then their sum.

A weight with few rows and long ones, a small model's second of an MLP, gives few programs to cuBLAS, each
of which goes a long way: 15 us on an H100 for (152, 4864) by (896, 4864), which take 3 to read. Parts
are products in 16 bits with sums in float32, so nothing is rounded before all are added, in their order.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
import triton
from torch import Tensor

from inference.kernels.gpu.linear import add_parts

_PARTS = (4, 8)
_LEAST_INNER = 256  # numbers that a part has at least
_ALIGNMENT = 8  # numbers that parts begin at multiples of, for cuBLAS's sake
_OUTPUTS, _ROWS = 128, 64  # of a program, about


def split_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *, parts: int) -> Tensor:
    """Return (M, N) of inputs (M, K), a weight (N, K), both in 16 bits, and a bias (N,).

    Raises ValueError if K can't be divided into so many parts.
    """
    rows, inner = x.shape
    if inner % parts:
        raise ValueError(f"{inner} inputs can't be divided into {parts} parts")
    left = x.unflatten(1, (parts, inner // parts)).transpose(0, 1)
    right = weight.unflatten(1, (parts, inner // parts)).permute(1, 2, 0)
    result = x.new_empty(rows, len(weight))
    add_parts(_products(left, right), bias, result)
    return result


def _products(left: Tensor, right: Tensor) -> Tensor:
    """Return the products (P, M, N), float32, of (P, M, K) and (P, K, N) in 16 bits."""
    if left.device.type == "cpu":  # which has no product of one dtype into another
        return torch.bmm(left.float(), right.float())
    return torch.bmm(left, right, out_dtype=torch.float32)


def splits(rows: int, outputs: int, inner: int, dtype: torch.dtype, processors: int) -> Iterator[int]:
    """Yield the numbers of parts worth measuring: none where there are programs enough without."""
    if dtype.itemsize != 2 or triton.cdiv(outputs, _OUTPUTS) * triton.cdiv(rows, _ROWS) >= processors:
        return
    for parts in _PARTS:
        if inner % (parts * _ALIGNMENT) == 0 and inner // parts >= _LEAST_INNER:
            yield parts
