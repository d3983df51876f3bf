"""Tensors that say that they are on a GPU, and what is asked of any tree of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_flatten, tree_unflatten

GPU = torch.device("cuda", 0)
_LEAVES = {type(None), bool, int, float, str, torch.dtype, torch.device}  # most of what is no tensor


class CudaTensor(Tensor):
    """Says that it is on a GPU; its numbers are in `elem`, on the CPU.

    To torch's own code it is on the device "meta": without CUDA that has no idea of GPUs.
    """

    elem: Tensor
    device = GPU
    is_cuda = True
    is_meta = False

    @staticmethod
    def __new__(cls, elem: Tensor) -> CudaTensor:
        wrapper: CudaTensor = Tensor._make_wrapper_subclass(
            cls,
            elem.size(),
            strides=elem.stride(),
            storage_offset=elem.storage_offset(),
            dtype=elem.dtype,
            device="meta",
        )
        wrapper.elem = elem
        return wrapper

    def __getitem__(self, index: Any) -> Tensor:
        return super().__getitem__(_numbers(index))

    def __setitem__(self, index: Any, value: Any) -> None:
        super().__setitem__(_numbers(index), value)

    def tolist(self) -> list[Any]:
        found: list[Any] = self.cpu().tolist()
        return found

    def __deepcopy__(self, memo: dict[int, Any]) -> Tensor:
        copy = self.detach().clone()
        return torch.nn.Parameter(copy, self.requires_grad) if hasattr(self, "_is_param") else copy

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} was called by a thread, or at a time, that has no GPU")


def tensors_of(tree: Any) -> list[Tensor]:
    """Return all tensors, also those in dataclasses."""
    if isinstance(tree, Tensor):
        return [tree]
    if type(tree) in _LEAVES:
        return []
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        tree = [getattr(tree, field.name) for field in dataclasses.fields(tree)]
    branches = tree if isinstance(tree, list | tuple) else tree.values() if isinstance(tree, dict) else ()
    return [tensor for each in branches for tensor in tensors_of(each)]


def unwrapped(tree: Any) -> Any:
    """Return the same with the tensors that hold the numbers."""
    return mapped(tree, lambda each: each.elem if isinstance(each, CudaTensor) else each)


def mapped(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return the same with other tensors, also in dataclasses; nothing of it stays behind in a cycle.

    Each operation comes through here a few times, and torch's own `tree_map` takes ten times as long.
    """
    if isinstance(tree, Tensor):
        return function(tree)
    kind = type(tree)
    if kind in _LEAVES:
        return tree
    if kind is tuple or kind is list:
        return kind([mapped(each, function) for each in tree])
    if kind is dict:
        return {name: mapped(each, function) for name, each in tree.items()}
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        found = {each.name: mapped(getattr(tree, each.name), function) for each in dataclasses.fields(tree)}
        return dataclasses.replace(tree, **found)
    leaves, form = tree_flatten(tree)  # what only torch knows how to put together again
    if leaves == [tree]:
        return tree
    return tree_unflatten([mapped(each, function) for each in leaves], form)


def _numbers(index: Any) -> Any:
    """Return an index whose lists are tensors on the CPU: on "meta" torch would make them without numbers."""
    if isinstance(index, tuple):
        return tuple(map(_numbers, index))
    return torch.tensor(index) if isinstance(index, list) else index


def place_of(tensor: Tensor) -> int:
    """Return which memory a tensor has."""
    return tensor.untyped_storage().data_ptr()


def spoil(tensors: list[Tensor]) -> None:
    """Leave in memory what is no number, and no index."""
    for each in tensors:
        each.fill_(torch.nan if each.is_floating_point() else each.dtype == torch.bool or -(1 << 30))


def is_gpu(device: Any) -> bool:
    """Return whether a device is the one that these tensors say."""
    return torch.device(device).type in ("cuda", "meta")
