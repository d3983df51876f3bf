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
    LinearStruct,
    PackedLinear,
    WeightKind,
    padded,
)
from inference.kernels.quantizing import quantize_rows

_LEAST_WEIGHTS = 1 << 22  # of a head: what the caches hold is read as fast in any form
# Of one in int8, of which six bits leave out a quarter: it paid with 136 million weights, not with 28 (Zen 4)
_LEAST_INT8_WEIGHTS = 1 << 26
_MOST_NORM = 1e15  # as in screen.inc.h
_MOST_SPREAD = 1.2  # standard deviations of logits that six bits may be wrong by, or too much is left
_ROWS_AT_ONCE = 2048  # whole panels; to bound memory


def screen_bytes(library: Library, weights: int, *, is_int8: bool, least: int | None = None) -> int:
    """Return what a head's screen takes, but for three numbers of each row; 0 where it has none."""
    pays = _LEAST_INT8_WEIGHTS if is_int8 else _LEAST_WEIGHTS
    if not library.has_vnni or weights < (pays if least is None else least):
        return 0
    return weights * 3 // 4 if is_int8 else weights


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
    errors: Tensor  # (n, to whole panels): the norm of what rounding took from a row
    norms: Tensor  # (the same): the norm of a rounded row

    @classmethod
    def of(cls, head: PackedLinear, least: int | None = None) -> Screen | None:
        """Return a head's screen; None where it is of no use, or the head has another form than it needs.

        `least`: weights that a head must have, if not as many as make it pay.
        """
        library, is_int8 = head.library, head.kind is WeightKind.INT8
        if head.bias is not None or head.kind is WeightKind.INT6 or head.k > MOST_INT8_INPUTS:
            return None
        if not screen_bytes(library, head.n * head.k, is_int8=is_int8, least=least):
            return None
        kind = WeightKind.INT6 if is_int8 else WeightKind.INT8
        rows = torch.empty((head.n, head.k), dtype=torch.int8)
        parts = [_round(head, rows, first, STEPS[kind]) for first in range(0, head.n, _ROWS_AT_ONCE)]
        scales, errors, norms = (padded(torch.cat(part)) for part in zip(*parts, strict=True))
        if not (errors.isfinite().all() and norms.max() < _MOST_NORM):
            return None
        if kind is WeightKind.INT6 and _spread(errors, norms, head.k) > _MOST_SPREAD:
            return None
        return cls(PackedLinear.of_integers(library, rows, scales[: head.n], kind), errors, norms)

    @property
    def nbytes(self) -> int:
        """Return the memory that it holds."""
        return self.linear.nbytes + self.errors.nbytes + self.norms.nbytes

    def struct(self) -> ScreenStruct:
        """Return it as C takes it, for as long as it is kept."""
        linear = ctypes.pointer(self.linear.struct)
        return ScreenStruct(linear, self.errors.data_ptr(), self.norms.data_ptr())


def _round(head: PackedLinear, rows: Tensor, first: int, step: int) -> tuple[Tensor, Tensor, Tensor]:
    """Put some of the head's rows into `rows`; return their scales, errors and norms.

    What float32 loses of these is less than C adds to them.
    """
    part = rows[first : first + _ROWS_AT_ONCE]
    exact = head.rows(torch.arange(first, first + len(part))).float()
    part[:], scales = quantize_rows(exact, step)
    rounded = part * scales[:, None]
    return scales, (exact - rounded).norm(dim=1), rounded.norm(dim=1)


def _spread(errors: Tensor, norms: Tensor, k: int) -> float:
    """Return how wrong logits may be, in standard deviations of what inputs without a direction give.

    Of tens of thousands of such logits the greatest is 4 away from their mean, and so few are near it.
    """
    return float(errors.sum() / norms.sum().clamp(min=1e-30)) * math.sqrt(k)
