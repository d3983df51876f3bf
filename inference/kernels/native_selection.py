"""What Mamba does between its convolution and its second linear, within a stack of layers.

Of what was convolved follows how much of it is kept, and by what it is read: linears, and maybe norms.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

from torch import Tensor

from inference.kernels.native import PackedLinear
from inference.kernels.native_recurrence import MambaScan, ScanStruct
from inference.kernels.state_parts import plain


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Selection:
    """Its weights."""

    projects: PackedLinear  # channels -> rank + 2 * keys
    widens: PackedLinear  # rank -> channels: the steps, but for their biases
    scan: MambaScan
    norms: tuple[Tensor, Tensor, Tensor] | None = None  # (rank,), (keys,), (keys,)
    eps: float = 0.0

    def check(self, channels: int) -> None:
        """Assert that the parts fit each other: C would read past their ends."""
        rank, keys = self.widens.k, self.scan.keys
        assert self.projects.k == self.widens.n == self.scan.channels == channels, "a number for each channel"
        assert self.projects.n == rank + 2 * keys, "steps, and what goes into the state and comes out of it"
        if self.norms is not None:
            assert [each.shape for each in self.norms] == [(rank,), (keys,), (keys,)], "a weight for each"


class SelectionStruct(ctypes.Structure):
    """`Selection` of state_layer.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("projects", "widens")),
        ("scan", ScanStruct),
        *((name, ctypes.c_void_p) for name in ("times_norm", "into_norm", "by_norm")),
        ("eps", ctypes.c_float),
    )


class NativeSelection:
    """The same as C is told of it."""

    def __init__(self, weights: Selection) -> None:
        self.scan = weights.scan
        self._held = weights, [plain(each) for each in weights.norms or ()]
        norms = [each.data_ptr() for each in self._held[1]] or [None] * 3
        linears = (ctypes.addressof(each.struct) for each in (weights.projects, weights.widens))
        self.struct = SelectionStruct(*linears, weights.scan.struct(), *norms, weights.eps)
