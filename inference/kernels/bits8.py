"""Weights in 8 bits as the C extension reads them, by panels of outputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from inference.kernels.bits4 import by_panel
from inference.quantised.bits8 import OF_E4M3, Bits8

_PANEL = 32  # outputs that are packed side by side, as in native.h
_NUMBERS = (torch.int8, torch.float8_e4m3fn, torch.float8_e5m2)  # enum Numbers


def numbers_of(weight: Bits8) -> int:
    """Return what the codes are, as native.h counts it."""
    return _NUMBERS.index(weight.codes.dtype)


def beside_codes(weight: Bits8) -> dict[str, Tensor]:
    """Return what `Linear` of native.h points to but for codes: `scales` (n / 32, groups, 32)."""
    return {"scales": by_panel(weight.kernels_scales())}


def read_bits8(packed: Mapping[str, Tensor], codes: Tensor, group: int, numbers: int, ids: Tensor) -> Bits8:
    """Return rows (ids, k) of a weight from their codes (ids, k) and what the C extension reads beside."""
    scales = packed["scales"][ids // _PANEL, :, ids % _PANEL]
    dtype = _NUMBERS[numbers]
    scales = scales / OF_E4M3 if dtype == torch.float8_e4m3fn else scales
    return Bits8(codes.view(dtype), group, scales)
