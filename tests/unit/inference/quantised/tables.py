"""Tensors as a checkpoint's reader is given them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from inference.files import safetensors
from inference.quantised.expansion import Found, Table
from inference.quantised.method import Method

DTYPES = {
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
    torch.float8_e8m0fnu: "F8_E8M0",
}


def table(tensors: Mapping[str, Tensor]) -> Table:
    """Return what a reader finds a checkpoint's tensors in."""
    headers = {
        name: safetensors.Tensor(DTYPES[each.dtype], tuple(each.shape), 0, each.nbytes)
        for name, each in tensors.items()
    }
    return Table(headers, "as a test has it", lambda name: tensors[name])


def method(name: str, **settings: Any) -> Method:
    """Return how a checkpoint says that it is quantised."""
    return Method(name, settings, name)


def expand(found: Found, tensors: Mapping[str, Tensor], name: str = "x.weight") -> Tensor:
    """Return a weight that was found, in float32."""
    expansion = found.weights[name]
    weight = torch.full(expansion.shape, torch.nan)
    expansion.expand({role: tensors[part] for role, part in expansion.parts.items()}, weight)
    return weight


def in_few_bits(found: Found, tensors: Mapping[str, Tensor], name: str = "x.weight") -> Tensor | None:
    """Return the same of its codes, None if it has none that are computed with."""
    expansion = found.weights[name]
    if expansion.codes is None:
        return None
    return expansion.codes({role: tensors[part] for role, part in expansion.parts.items()}).expand()
