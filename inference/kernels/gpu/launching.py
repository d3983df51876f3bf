"""Launches of Triton's kernels, which are compiled many at once where that is known to be wanted.

Triton compiles a kernel when it is first launched in a new form, in about a second, on one core. While
a model is loaded it is known which launches there will be: made under `compiling`, they compute nothing
and hand what isn't compiled yet to as many threads as there are cores.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import triton

from inference.machine import usable_cores

_COMPILES: ContextVar[bool] = ContextVar("compiles", default=False)  # instead of launching, in this thread


def launch(kernel: Any, grid: tuple[int, ...], *args: Any, **options: Any) -> None:
    """Queue a kernel on the current stream; under `compiling`, have it compiled instead."""
    if _COMPILES.get():
        kernel.warmup(*args, grid=grid, **options)
    else:
        kernel[grid](*args, **options)


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
