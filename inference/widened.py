"""A model of 16 bits in float32 for a while, where a wrong place shows that rounding would hide."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import chain

import torch
from torch import nn

_NARROW = (torch.bfloat16, torch.float16)


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Have a model compute in float32 with the same numbers; it takes three times its memory meanwhile.

    Raises what torch raises where there is no memory for it. The model is as before then, which needs none:
    its own numbers are held.
    """
    tensors = chain(model.parameters(), model.buffers())
    narrow = [(each, each.data) for each in tensors if each.dtype in _NARROW]
    try:
        for tensor, numbers in narrow:
            tensor.data = numbers.float()
        yield
    finally:
        for tensor, numbers in narrow:
            tensor.data = numbers
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # others ask the GPU how much is free
