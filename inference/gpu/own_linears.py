"""What a model's own code multiplies by itself, such as routers: in one order of sums for all batches."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

from inference.gpu.ops import Ops


class InvariantLinears(TorchFunctionMode):
    """While it is entered `torch.nn.functional.linear` is computed by operations that are invariant."""

    def __init__(self, ops: Ops) -> None:
        super().__init__()
        self._ops = ops

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func is linear and not kwargs and _is_plain(*args):
            x, weight, *bias = args
            rows = x.reshape(-1, x.shape[-1]).contiguous()
            found = self._ops.linear(rows, weight.contiguous(), bias[0] if bias else None)
            return found.view(*x.shape[:-1], -1)
        return func(*args, **(kwargs or {}))


def _is_plain(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> bool:
    floats = x.is_floating_point() and x.dtype == weight.dtype
    return weight.dim() == 2 and floats and x.numel() > 0
