"""Launches of Triton's kernels, which are compiled many at once where that is known to be wanted.

Triton compiles a kernel when it is first launched in a new form, in about a second, on one core. While
a model is loaded it is known which launches there will be: made under `compiling`, they compute nothing
and hand what isn't compiled yet to as many threads as there are cores.

To find the form of a launch takes Triton longer than a small kernel takes the GPU. So the compiled
kernel is kept here by what its form depends on.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from functools import lru_cache
from typing import Any

import torch
import triton
from torch import Tensor
from triton.compiler import CompiledKernel

from inference.kernels.gpu.interpreter import interpreted
from inference.machine import usable_cores

_COMPILES: ContextVar[bool] = ContextVar("compiles", default=False)  # instead of launching, in this thread
_OVERLAPS = "OVERLAPS"  # the argument of kernels that can come up early, see overlap.py
_HOPPER = (9, 0)  # the first that lets kernels come up early
_ALIGNMENT = 16  # bytes, and numbers, that the compiler is told of multiples of

_overlapping: bool | None = None  # None: nobody has said
_compiled: dict[tuple[Any, ...], tuple[Any, tuple[Any, ...]]] = {}  # by form: a kernel, and its constants


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Queue a kernel on the current stream; under `compiling`, have it compiled instead."""
    early = _overlaps()
    form = (kernel.fn, early, *options.values(), *map(_form, args))
    known = _compiled.get(form)
    if known is not None and not _COMPILES.get():
        found, constants = known
        found[(*grid, 1, 1)[:3]](*args, *constants)
        return
    if _OVERLAPS in kernel.arg_names:
        options[_OVERLAPS] = early
        if early:  # the interpreter doesn't know the word
            options["launch_pdl"] = True
    if _COMPILES.get():
        kernel.warmup(*args, grid=grid, **options)
        return
    found = kernel[grid](*args, **options)
    if isinstance(found, CompiledKernel):  # the interpreter has none
        _compiled[form] = found, tuple(options[name] for name in kernel.arg_names[len(args) :])


def _form(value: object) -> object:
    """Return all that the compiler is told of an argument."""
    if isinstance(value, Tensor):
        return value.dtype, value.data_ptr() % _ALIGNMENT == 0
    if type(value) is int:
        return value == 1, value % _ALIGNMENT == 0, -(1 << 31) <= value < 1 << 31, value < 1 << 63
    return type(value)


def _overlaps() -> bool:
    if _overlapping is None:
        overlap_kernels(wanted=True)
    return bool(_overlapping)


def overlap_kernels(*, wanted: bool) -> None:
    """Say whether kernels of this process come up while those before them compute, where a GPU can do it."""
    global _overlapping
    _overlapping = wanted and can_overlap()


@lru_cache
def can_overlap() -> bool:
    """Return whether there is a GPU that lets kernels come up early; without one, yes: it's compiled for."""
    if interpreted() or torch.version.hip is not None:
        return False
    return not torch.cuda.is_available() or torch.cuda.get_device_capability() >= _HOPPER


@contextmanager
def compiling() -> Iterator[None]:
    """Have the kernels that are launched meanwhile compiled, and none of them run.

    What can't be compiled is left to the launch that needs it, which raises.
    """
    with (
        ThreadPoolExecutor(usable_cores(), "compiling") as threads,
        triton.AsyncCompileMode(threads, ignore_errors=True),
    ):
        token = _COMPILES.set(True)
        try:
            yield
        finally:
            _COMPILES.reset(token)
