"""Tensors that say that they are on a GPU, and what is asked of any tree of tensors."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda", 0)


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
    leaves = []
    for each in tree_leaves(tree):
        if dataclasses.is_dataclass(each) and not isinstance(each, type):
            leaves += tensors_of([getattr(each, field.name) for field in dataclasses.fields(each)])
        elif isinstance(each, Tensor):
            leaves.append(each)
    return leaves


def unwrapped(tree: Any) -> Any:
    """Return the same with the tensors that hold the numbers."""
    return mapped(tree, lambda each: each.elem if isinstance(each, CudaTensor) else each)


def mapped(tree: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """Return the same with other tensors, also in dataclasses; nothing of it stays behind in a cycle."""
    return tree_map(partial(_mapped_leaf, function=function), tree)


def _mapped_leaf(leaf: Any, function: Callable[[Tensor], Tensor]) -> Any:
    if dataclasses.is_dataclass(leaf) and not isinstance(leaf, type):
        found = {each.name: mapped(getattr(leaf, each.name), function) for each in dataclasses.fields(leaf)}
        return dataclasses.replace(leaf, **found)
    return function(leaf) if isinstance(leaf, Tensor) else leaf


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
