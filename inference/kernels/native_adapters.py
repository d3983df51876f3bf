"""What adapters add to the linears of a stack of layers, as C takes it (LoRA, Hu et al. 2021)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.kernels.native import PANEL

_NARROW = {torch.float32: 0, torch.bfloat16: 1}


@dataclass(frozen=True, slots=True, eq=False)
class LowRank:
    """y[first + i] += scale * (up (down x))[i], of a linear's outputs y and its inputs x."""

    down: Tensor  # (rank, k), float32 or bfloat16, as is
    up: Tensor  # (n, rank)
    scale: float = 1.0
    first: int = 0


Linears = Sequence[Sequence[LowRank]]  # of one adapter: those of each linear, layer by layer


class _LowRank(ctypes.Structure):
    """`LowRank` of layer.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("down", "up")),
        *((name, ctypes.c_int64) for name in ("rank", "first", "panels")),
        *((name, ctypes.c_int32) for name in ("down_narrow", "up_narrow")),
        ("scale", ctypes.c_float),
    )


class _LowRanks(ctypes.Structure):
    """`LowRanks` of layer.h."""

    _fields_ = (("several", ctypes.POINTER(_LowRank)), ("count", ctypes.c_int64))


class NativeAdapter:
    """One adapter of a stack, in the order in which it is computed with."""

    def __init__(self, adapter: Linears, sizes: Sequence[tuple[int, int]]) -> None:
        """Take its low ranks; `sizes`: outputs and inputs of each linear, layer by layer."""
        self._held: list[object] = []
        linears = [self._linear(*each) for each in zip(adapter, sizes, strict=True)]
        self.linears = (_LowRanks * len(linears))(*linears)
        self.rank = max((sum(each.down.shape[0] for each in linear) for linear in adapter), default=0)

    def _linear(self, ranks: Sequence[LowRank], size: tuple[int, int]) -> _LowRanks:
        structs = (_LowRank * len(ranks))(*(self._struct(each, *size) for each in ranks))
        self._held.append(structs)
        return _LowRanks(structs, len(ranks))

    def _struct(self, low: LowRank, n: int, k: int) -> _LowRank:
        rank, count = low.down.shape[0], low.up.shape[0]
        assert low.down.shape == (rank, k), "it reads what the linear reads"
        assert low.up.shape == (count, rank), "both sides have one rank"
        assert 0 <= low.first <= low.first + count <= n, "it adds to the linear's outputs"
        first = low.first // PANEL
        down, up = low.down.contiguous(), _in_panels(low.up, low.first - first * PANEL)
        self._held += [down, up]
        narrow = [_NARROW[each.dtype] for each in (down, up)]
        return _LowRank(down.data_ptr(), up.data_ptr(), rank, first, len(up), *narrow, low.scale)


class NativeAdapters:
    """Several adapters of one stack; each row of a step is computed with one of them, or none."""

    def __init__(self, adapters: Sequence[NativeAdapter | None], linears: int) -> None:
        """Take them by their places, of which some may be empty; `linears`: of all layers."""
        self.count = len(adapters)
        self._held = tuple(adapters)
        self.linears = (_LowRanks * (linears * len(adapters)))()  # those of an empty place add nothing
        for place, each in enumerate(adapters):
            if each is not None:
                assert len(each.linears) == linears, "it is for this stack"
                to = ctypes.byref(self.linears, place * ctypes.sizeof(each.linears))
                ctypes.memmove(to, each.linears, ctypes.sizeof(each.linears))
        self.rank = max((each.rank for each in adapters if each is not None), default=0)  # of one linear


def _in_panels(up: Tensor, before: int) -> Tensor:
    """Return (panels, rank, PANEL) of (n, rank), whose first output is `before` others in its panel."""
    count, rank = up.shape
    panels = up.new_zeros(-(-(before + count) // PANEL) * PANEL, rank)
    panels[before : before + count] = up
    return panels.unflatten(0, (-1, PANEL)).transpose(1, 2).contiguous()
