"""bfloat16 weights in 12 bits: which exponents get a code in each panel of a weight, and what has none.

Of the 8 bits of an exponent a trained weight uses under 3 (Zhang et al. 2025, DFloat11), so that 16
neighbouring ones, the least of them even, are nearly all that a panel has. The rest is listed, and so
nothing is lost. How the bits lie is in `inference/kernels/native/linear.h`.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

_PANEL = 32  # outputs, as in native.h
_MOST_EXCEPTIONS = 1 / 1024  # of the weights: with four times as many, products of several rows took longer


@dataclass(frozen=True, slots=True)
class Coding:
    """How a weight (n, k) of bfloat16 would be coded, by panel."""

    numbers: int  # of weights
    bases: Tensor  # (panels) uint8: the least exponent that has a code
    counts: Tensor  # (panels) int64: of the weights whose exponent has none

    @property
    def exceptions(self) -> int:
        """Return how many weights have an exponent without a code."""
        return int(self.counts.sum())

    @property
    def pays(self) -> bool:
        """Return whether products take no longer than with all 16 bits."""
        return self.exceptions <= _MOST_EXCEPTIONS * self.numbers

    def tensors(self) -> dict[str, Tensor]:
        """Return what there is beside the codes, by its name in native.h; packing fills the exceptions in."""
        entries = self.counts + 1  # the last of a panel ends it
        return {
            "bases": self.bases,
            "exceptions": torch.zeros(int(entries.sum()), dtype=torch.int64),
            "firsts": entries.cumsum(0) - entries,
        }


def survey(functions: ctypes.CDLL, handle: ctypes.c_void_p, linear: ctypes.Structure, rows: Tensor) -> Coding:
    """Return how a contiguous weight (n, k) of bfloat16 would be coded; `linear` has its n and k."""
    n, k = rows.shape
    panels = -(-n // _PANEL)
    bases, counts = torch.empty(panels, dtype=torch.uint8), torch.empty(panels, dtype=torch.int64)
    pointers = (tensor.data_ptr() for tensor in (rows, bases, counts))
    functions.parley_survey(handle, ctypes.byref(linear), *pointers)
    return Coding(n * k, bases, counts)
