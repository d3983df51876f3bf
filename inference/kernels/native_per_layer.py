"""Per-layer inputs in C's stack: what layers are given of a token beside the residual stream."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass

import torch
from torch import Tensor

from inference.kernels.native import PackedLinear

_KINDS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}  # enum Kind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PerLayerWeights:
    """A layer's part: x += norm(projection(activation(gate(x)) * inputs)), behind its MLP."""

    gate: PackedLinear  # hidden -> size
    projection: PackedLinear  # size -> hidden
    norm: Tensor  # (hidden,)
    first: int  # where in a row of all layers' inputs this layer's begin

    def check(self, hidden: int) -> None:
        """Assert that the parts fit each other: C would read past their ends."""
        assert self.gate.k == self.projection.n == hidden, "they read and give what the layer does"
        assert self.gate.n == self.projection.k, "a gate for each input"
        assert self.norm.shape == (hidden,), "a weight for each hidden number"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PerLayerInputs:
    """How inputs are made of a token and its embedding x.

    They are factor * (norm(projection_factor * projection(x)) + table_factor * table[id]), with a norm of
    each layer's.
    """

    projection: PackedLinear  # hidden -> layers * size
    table: Tensor  # (ids, layers * size), maybe in 16 bits
    norm: Tensor  # (size,)
    eps: float
    given: int  # whose row of the table is that of rows that are no embedding's: an id
    projection_factor: float
    table_factor: float
    factor: float

    def check(self, hidden: int, vocabulary: int) -> None:
        """Assert that the parts fit each other: C would read past their ends."""
        assert self.projection.k == hidden, "it reads what the layers are given"
        assert self.table.shape[1] == self.projection.n, "as many numbers of the table"
        assert self.table.is_contiguous(), "C reads one row behind the other"
        assert len(self.table) >= vocabulary, "a row for each token"
        assert 0 <= self.given < len(self.table), "it is a token"
        assert self.projection.n % self.norm.numel() == 0, "as many inputs for each layer"


class PerLayerStruct(ctypes.Structure):
    """`PerLayer` of per_layer.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("gate", "projection", "norm")),
        ("first", ctypes.c_int64),
    )

    @classmethod
    def of(cls, weights: PerLayerWeights, norm: int | None) -> PerLayerStruct:
        """Return one; the caller keeps the weights, and what lies at `norm`."""
        linears = (ctypes.addressof(each.struct) for each in (weights.gate, weights.projection))
        return cls(*linears, norm, weights.first)


class PerLayerInputsStruct(ctypes.Structure):
    """`PerLayerInputs` of per_layer.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("projection", "table")),
        ("kind", ctypes.c_int64),
        ("norm", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("size", "given")),
        *((name, ctypes.c_float) for name in ("eps", "projection_factor", "table_factor", "factor")),
    )

    @classmethod
    def of(cls, inputs: PerLayerInputs) -> tuple[PerLayerInputsStruct, tuple[object, ...]]:
        """Return one, and what it points to."""
        norm = inputs.norm.detach().float().contiguous()
        struct = cls(
            ctypes.addressof(inputs.projection.struct),
            inputs.table.data_ptr(),
            _KINDS[inputs.table.dtype],
            norm.data_ptr(),
            *(norm.numel(), inputs.given),
            *(inputs.eps, inputs.projection_factor, inputs.table_factor, inputs.factor),
        )
        return struct, (inputs, norm)
