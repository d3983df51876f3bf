"""A copy of a head in 8 bits, by which C finds the likeliest token without all of the head's products."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.kernels.native import MOST_INT8_INPUTS, PANEL, LinearStruct, PackedLinear, WeightKind

LEAST_WEIGHTS = 1 << 22  # of a head: what the caches hold is read as fast in any form
_MOST_NORM = 1e15  # as in screen.inc.h
_ROWS_AT_ONCE = 2048  # whole panels; to bound memory


class ScreenStruct(ctypes.Structure):
    """`Screen` of layer.h."""

    _fields_ = (
        ("linear", ctypes.POINTER(LinearStruct)),
        ("errors", ctypes.c_void_p),
        ("norms", ctypes.c_void_p),
    )


@dataclass(frozen=True, slots=True, eq=False)
class Screen:
    """The copy, and for each of its panels how far it may be from the head."""

    linear: PackedLinear  # int8
    errors: Tensor  # (panels,): the largest norm of what rounding took from a row
    norms: Tensor  # (panels,): the largest norm of a rounded row

    @classmethod
    def of(cls, head: PackedLinear, least: int = LEAST_WEIGHTS) -> Screen | None:
        """Return a head's screen; None where it is of no use, or the head has another form than it needs.

        `least`: weights that a head must have.
        """
        library = head.library
        fits = head.kind is not WeightKind.INT8 and head.bias is None and library.has_vnni
        if not fits or head.n * head.k < least or head.k > MOST_INT8_INPUTS:
            return None
        linear = PackedLinear.pack(library, head.unpack(), None, WeightKind.INT8)
        measured = [_measure(head, linear, first) for first in range(0, head.n, _ROWS_AT_ONCE)]
        errors, norms = (torch.cat(parts).float() for parts in zip(*measured, strict=True))
        if not (errors.isfinite().all() and norms.max() < _MOST_NORM):
            return None
        return cls(linear, errors, norms)

    @property
    def nbytes(self) -> int:
        """Return the memory that it holds."""
        return self.linear.nbytes + self.errors.nbytes + self.norms.nbytes

    def struct(self) -> ScreenStruct:
        """Return it as C takes it, for as long as it is kept."""
        linear = ctypes.pointer(self.linear.struct)
        return ScreenStruct(linear, self.errors.data_ptr(), self.norms.data_ptr())


def _measure(head: PackedLinear, linear: PackedLinear, first: int) -> tuple[Tensor, Tensor]:
    """Return the errors and the norms of some panels, in float64."""
    ids = torch.arange(first, min(first + _ROWS_AT_ONCE, head.n))
    exact, rounded = head.rows(ids).double(), linear.rows(ids).double()
    return _largest((exact - rounded).norm(dim=1)), _largest(rounded.norm(dim=1))


def _largest(norms: Tensor) -> Tensor:
    """Return the largest of each panel's (rows,)."""
    return torch.stack([panel.max() for panel in norms.split(PANEL)])
