"""A model of 16 bits in float32 for a while, where a wrong place shows that rounding would hide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import chain

import torch
from torch import Tensor, nn

from inference.models.weights import NARROW


@contextmanager
def in_float32(model: nn.Module) -> Iterator[None]:
    """Have a model compute in float32 with the same numbers.

    Layers are of float32 while they compute alone, so that it takes but little more than the model itself:
    what is outside of layers, and the largest of them, twice. Raises what torch raises where there is no
    memory for that. The tensors that the model had have their own numbers again then, which are held
    meanwhile.
    """
    layers = list(_layers(model))
    within = {id(tensor) for layer in layers for tensor in _tensors(layer)}
    outside = _Narrow(each for each in _tensors(model) if id(each) not in within)
    with ExitStack() as undone:
        if torch.cuda.is_available():
            undone.callback(torch.cuda.empty_cache)  # at last: others ask the GPU how much is free
        undone.callback(outside.restore)
        for layer in layers:
            own = _Narrow(_tensors(layer))
            undone.callback(own.restore)
            undone.callback(layer.register_forward_pre_hook(own.widen).remove)
            undone.callback(layer.register_forward_hook(own.restore).remove)
        outside.widen()
        yield


class _Narrow:
    """Those of some tensors that are of 16 bits, with their own numbers."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._own = [(each, each.data) for each in tensors if each.dtype in NARROW]

    def widen(self, *_: object) -> None:
        for tensor, numbers in self._own:
            tensor.data = numbers.float()

    def restore(self, *_: object) -> None:
        for tensor, numbers in self._own:
            tensor.data = numbers


def _tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from chain(module.parameters(), module.buffers())


def _layers(module: nn.Module) -> Iterator[nn.Module]:
    """Return the members of lists, but not of lists within those."""
    for child in module.children():
        if isinstance(child, nn.ModuleList):
            yield from child
        else:
            yield from _layers(child)
