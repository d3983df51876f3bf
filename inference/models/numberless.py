"""What stands for a weight where its numbers are elsewhere, packed or in 4 bits."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

import torch
from torch import Tensor

SIZES = (Tensor.shape.__get__, Tensor.ndim.__get__, Tensor.size, Tensor.dim)  # what is asked of a shape


class Numberless(Tensor):
    """Says of a weight what it is like; its numbers are packed."""

    place: torch.device | None = None  # where its numbers are, if that is said: some code makes others there

    @classmethod
    def of(
        cls, shape: Sequence[int], dtype: torch.dtype = torch.float32, place: torch.device | None = None
    ) -> Self:
        """Return one that takes no memory."""
        made = torch.empty(tuple(shape), dtype=dtype, device="meta").as_subclass(cls)
        made.place = place
        return made

    @classmethod
    def __torch_function__(
        cls, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if func == Tensor.device.__get__ and args[0].place is not None:
            return args[0].place
        if func not in (Tensor.dtype.__get__, *SIZES):  # torch would give whatever is in memory
            raise TypeError("a weight that is packed, or that adapters add to, can't be read")
        with torch._C.DisableTorchFunctionSubclass():
            return func(*args, **(kwargs or {}))
