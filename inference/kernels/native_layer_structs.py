"""What C knows of a stack's layers, and of what they have in common."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING

from inference.kernels.native_attention import AttentionStruct, CacheStruct

if TYPE_CHECKING:
    from inference.kernels.native_layers import StackShape


class LayerStruct(ctypes.Structure):
    """`Layer` of layer.h."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("qkv", "out", "gate_up", "down")),
        *((name, ctypes.c_void_p) for name in ("mixture", "state", "latent")),
        *((name, ctypes.c_void_p) for name in ("input_norm", "mid_norm", "attention_norm", "mlp_norm")),
        *((name, ctypes.c_void_p) for name in ("query_norm", "key_norm", "attended_norm", "inner_norm")),
        *((name, ctypes.c_int64) for name in ("query_norm_size", "key_norm_size", "rotary")),
        *((name, ctypes.c_int64) for name in ("gated", "parallel", "late_norms")),
        *((name, ctypes.c_void_p) for name in ("query_scales", "xielu")),
        ("how", AttentionStruct),
        ("cache", CacheStruct),
        *((name, ctypes.c_int64) for name in ("rotary_dim", "borrows", "plan")),
        *((name, ctypes.c_void_p) for name in ("value_norm", "per_layer")),
        ("scale", ctypes.c_float),
    )


class ShapeStruct(ctypes.Structure):
    """`Shape` of layer.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("hidden", "heads", "kv_heads", "head_dim")),
        *((name, ctypes.c_int64) for name in ("rotary_dim", "interleaved", "activation", "centred")),
        ("eps", ctypes.c_float),
        ("residual", ctypes.c_float),
    )

    @classmethod
    def of(cls, shape: StackShape, activation: int) -> ShapeStruct:
        """Return one; `activation`: its number."""
        return cls(
            shape.hidden,
            shape.heads,
            shape.kv_heads,
            shape.head_dim,
            shape.head_dim if shape.rotary_dim is None else shape.rotary_dim,
            shape.interleaved,
            activation,
            shape.centred,
            shape.eps,
            shape.residual,
        )
