"""Keys and values that several layers attend to, as in Gemma 4: which layer keeps them, and what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from inference.models.norms import bare_norm
from inference.models.other_shape import OtherShape
from inference.models.trace import LayerTrace, Pair


class Lenders:
    """Sees, in one pass, which attention modules are given the very keys and values of an earlier one."""

    def __init__(self) -> None:
        # By where they are; kept, or others came there
        self._seen: dict[tuple[int, int], tuple[nn.Module, Pair]] = {}

    def of(self, module: nn.Module, key: Tensor, value: Tensor) -> nn.Module | None:
        """Return the module whose keys and values these are, None if they are its own."""
        where = key.data_ptr(), value.data_ptr()
        lender, _ = self._seen.setdefault(where, (module, (key, value)))
        return None if lender is module or 0 in where else lender


def borrowed(trace: LayerTrace) -> Pair:
    """Return the keys and values (tokens, kv_heads, dim) that a layer attended to; raise OtherShape."""
    attention: Any = trace.attention
    kind = getattr(attention, "layer_type", None)
    for value in trace.keywords.values():
        if isinstance(value, Mapping) and kind in value:
            keys, values = (each[0].transpose(0, 1).float() for each in value[kind])
            return keys, values
    raise OtherShape("it attends to another layer's keys and values, and what they are isn't known")


def value_norm(attention: nn.Module, size: int) -> tuple[Tensor, float] | None:
    """Return what values of heads are multiplied with once normalised, and the epsilon; None: they aren't.

    Such a norm has no weights of its own. Raises OtherShape if it is another.
    """
    module: Any = getattr(attention, "v_norm", None)
    if not isinstance(module, nn.Module):
        return None
    norm = bare_norm(module, size)
    if norm is None:
        raise OtherShape("its values are normalised in another way")
    return norm.weights, norm.eps
