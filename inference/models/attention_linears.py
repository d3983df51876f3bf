"""The linears of attention, found by their names or their sizes."""

from __future__ import annotations

from torch import nn

from inference.models.joined import Linears, linears_in, named_linears
from inference.models.other_shape import OtherShape
from inference.models.paged import Probed

QKV = (("q_proj", "k_proj", "v_proj"), ("qkv_proj",))
KEYS_ALONE, _QUERIES_ALONE = (
    ("q_proj", "k_proj"),
    ("q_proj",),
)  # where keys are values, too, or another layer's
_OUT = (("o_proj",), ("out_proj",), ("dense",))
_GATED_QKV = (("q_proj", "gate_proj", "k_proj", "v_proj"),)  # as in AFMoE


def attention_linears(attention: nn.Module, probed: Probed) -> tuple[Linears, Linears]:
    """Return what makes queries, keys and values, and what reads what was found: by names, or by sizes."""
    if probed.borrows is not None:
        return named_linears(attention, (_QUERIES_ALONE,)), named_linears(attention, _OUT)
    try:
        gated = all(hasattr(attention, name) for name in _GATED_QKV[0])
        return named_linears(attention, _GATED_QKV if gated else QKV), named_linears(attention, _OUT)
    except OtherShape:
        keys_alone = _keys_alone(attention, probed)
        if keys_alone is not None:
            return keys_alone, named_linears(attention, _OUT)
        found = list(linears_in(attention))
        queries = probed.heads * probed.shape.key_dim
        joint = queries + probed.shape.kv_heads * (probed.shape.key_dim + probed.shape.value_dim)
        merged = [name for name, (n, _) in found if n == joint]
        out = [name for name, (_, k) in found if k == queries and name not in merged[:1]]
        if len(found) != 2 or not merged or not out:
            raise
        return Linears(attention, (merged[0],)), Linears(attention, (out[0],))


def _keys_alone(attention: nn.Module, probed: Probed) -> Linears | None:
    """Return what makes queries and keys that are values, too; None: that's not what it has."""
    try:
        found = named_linears(attention, (KEYS_ALONE,))
    except OtherShape:
        return None
    return (
        found if sum(found.sizes) == (probed.heads + probed.shape.kv_heads) * probed.shape.key_dim else None
    )


def kept_of(qkv: Linears, probed: Probed) -> int:
    """Return how many of keys and values linears give: one stands for both; another layer's aren't given."""
    if probed.borrows is not None:
        return 0
    return 1 if qkv.names == KEYS_ALONE else 2
