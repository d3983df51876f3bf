"""Keys and values that several layers attend to, as in Gemma 4: which layer keeps them, and what they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from inference.models.other_shape import OtherShape
from inference.models.trace import LayerTrace, Pair


class Lenders:
    """Sees, in one pass, which attention modules are given the very keys and values of an earlier one."""

    def __init__(self) -> None:
        self._seen: dict[
            tuple[int, int], tuple[nn.Module, Pair]
        ] = {}  # by where they are; kept, or others came there

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
    eps = getattr(module, "eps", None)
    x = torch.randn(3, size, generator=torch.Generator().manual_seed(0)) * torch.tensor(
        [[1.0], [30.0], [0.01]]
    )
    if isinstance(eps, float) and not any(True for _ in module.parameters()):
        with torch.inference_mode():
            found = module(x)
        if torch.allclose(
            found, x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps), rtol=1e-5, atol=1e-6
        ):
            return torch.ones(size), eps
    raise OtherShape("its values are normalised in another way")
