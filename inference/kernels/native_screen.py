"""A copy of a head in 8 or 6 bits, by which C finds the likeliest token without all of its products."""

from __future__ import annotations

import ctypes
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.kernels.native import (
    MOST_INT8_INPUTS,
    STEPS,
    Library,
    PackedLinear,
    WeightKind,
    padded,
)
from inference.kernels.quantizing import quantize_rows
from inference.kernels.structs import LinearStruct

_LEAST_WEIGHTS = 1 << 22  # of a head: what the caches hold is read as fast in any form
# Of one in int8, of which six bits leave out a quarter: that paid with 136 million, not with 28 (Zen 4).
# The wider a row, the more of the likeliest logits are closer together than six bits tell apart
_LEAST_INT8_WEIGHTS, _MOST_INT8_WIDTH = 1 << 26, 1408
_ROW_BYTES = 16  # of each row: its scale, sum, error and norm
_MOST_NORM = 1e15  # as in screen.inc.h
_MOST_SPREAD = 1.2  # standard deviations of logits that six bits may be wrong by, or too much is left
_ROWS_AT_ONCE = 2048  # to bound memory


def screen_bytes(library: Library, n: int, k: int, *, is_int8: bool) -> int:
    """Return what the screen of a head (n, k) takes, as far as its shape says; 0 where it would not pay."""
    wide = is_int8 and k > _MOST_INT8_WIDTH
    least = _LEAST_INT8_WEIGHTS if is_int8 else _LEAST_WEIGHTS
    if not _can_screen(library, is_int8=is_int8) or wide or n * k < least:
        return 0
    return (n * k * 3 // 4 if is_int8 else n * k) + n * _ROW_BYTES


def _can_screen(library: Library, *, is_int8: bool) -> bool:
    """Return whether there are kernels for the copy: int8 of a wider head, int6 of one in int8."""
    return library.has_vnni if is_int8 else library.screens


class ScreenStruct(ctypes.Structure):
    """`Screen` of layer.h."""

    _fields_ = (
        ("linear", ctypes.POINTER(LinearStruct)),
        ("errors", ctypes.c_void_p),
        ("norms", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Screen:
    """The copy, and for each of its rows how far it may be from the head's."""

    linear: PackedLinear  # int8, or int6 of a head in int8
    errors: Tensor  # (n and up to a whole panel): the norm of what rounding took from a row
    norms: Tensor  # (the same): the norm of a rounded row

    @classmethod
    def of(cls, head: PackedLinear, *, small: bool = False) -> Screen | None:
        """Return a head's screen; None where it is of no use, or the head has another form than it needs.

        `small`: also where only the head's size says that it doesn't pay.
        """
        is_int8 = head.kind is WeightKind.INT8
        if head.bias is not None or head.kind is WeightKind.INT6 or head.k > MOST_INT8_INPUTS:
            return None
        useful = small and _can_screen(head.library, is_int8=is_int8)
        if not (useful or screen_bytes(head.library, head.n, head.k, is_int8=is_int8)):
            return None
        kind = WeightKind.INT6 if is_int8 else WeightKind.INT8
        rows, parts = torch.empty((head.n, head.k), dtype=torch.int8), []
        for first in range(0, head.n, _ROWS_AT_ONCE):
            scales, errors, norms = _round(head, rows, first, STEPS[kind])
            if not (errors.isfinite().all() and norms.max() < _MOST_NORM):
                return None
            if is_int8 and _spread(errors, norms, head.k) > _MOST_SPREAD:
                return None
            parts.append((scales, errors, norms))
        scales, errors, norms = (torch.cat(part) for part in zip(*parts, strict=True))
        return cls(PackedLinear.of_integers(head.library, rows, scales, kind), padded(errors), padded(norms))

    @property
    def nbytes(self) -> int:
        """Return the memory that it holds."""
        return self.linear.nbytes + self.errors.nbytes + self.norms.nbytes

    def struct(self) -> ScreenStruct:
        """Return it as C takes it, for as long as it is kept."""
        linear = ctypes.pointer(self.linear.struct)
        return ScreenStruct(linear, self.errors.data_ptr(), self.norms.data_ptr())


def _round(head: PackedLinear, rows: Tensor, first: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Put some of the head's rows into `rows`; return their scales, errors and norms, as of float64."""
    part = rows[first : first + _ROWS_AT_ONCE]
    exact = head.rows(torch.arange(first, first + len(part))).float()
    part[:], scales = quantize_rows(exact, step)
    rounded = part * scales[:, None]
    # Squares of small numbers would be nothing in float32
    errors, norms = (each.double().norm(dim=1).float() for each in (exact - rounded, rounded))
    return scales, errors, norms


def _spread(errors: Tensor, norms: Tensor, k: int) -> float:
    """Return how wrong logits may be, in standard deviations of what inputs without a direction give.

    Of tens of thousands of such logits the greatest is 4 away from their mean, and so few are near it.
    """
    return float(errors.sum() / norms.sum().clamp(min=1e-30)) * math.sqrt(k)
