"""Triton's interpreter: products whose sums have one order, whatever BLAS a machine has, and quicker calls.

The interpreter multiplies by numpy, whose BLAS may sum a row in another order where it lies elsewhere
among the rows (OpenBLAS on Zen 5 does). On a GPU a tile's rows are summed alike, and kernels rely on it.

For each call of a kernel's function it looks through all members of triton.language for those that it
has to replace. They are always the same ones, and looking took up to two fifths of what a kernel did.
"""

from __future__ import annotations

import inspect
import sys
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

_INTERPRETER = "triton.runtime.interpreter"
_FLOATS = (np.float16, np.float32)


def settle_products() -> None:
    """Have the interpreter sum in one order, once somebody has imported it."""
    interpreter: Any = sys.modules.get(_INTERPRETER)
    if interpreter is None or getattr(interpreter.InterpreterBuilder.create_dot, "settled", False):
        return
    own = interpreter.InterpreterBuilder.create_dot

    def create_dot(self: Any, a: Any, b: Any, d: Any, *how: Any) -> Any:
        if {a.data.dtype.type, b.data.dtype.type} - set(_FLOATS) or d.data.dtype != np.float32:
            return own(self, a, b, d, *how)
        return interpreter.TensorHandle(product(a.data, b.data) + d.data, d.dtype.scalar)

    create_dot.settled = True  # type: ignore[attr-defined]
    interpreter.InterpreterBuilder.create_dot = create_dot


def find_builtins_once() -> None:
    """Have the interpreter look for what it replaces once, as soon as somebody has imported it."""
    interpreter: Any = sys.modules.get(_INTERPRETER)
    if interpreter is None or getattr(interpreter._patch_builtin, "settled", False):
        return
    language: Any = interpreter.tl
    is_builtin = language.core.is_builtin

    @cache
    def builtins(package: Any) -> tuple[str, ...]:
        return tuple(name for name, member in inspect.getmembers(package) if is_builtin(member))

    def patch_builtin(package: Any, *how: Any) -> None:
        for name in builtins(package):
            member = getattr(package, name)
            if is_builtin(member):  # else a call around this one has replaced it
                interpreter._patch_attr(package, name, member, *how)

    core = language.core
    for package in (language, language.math, core, language.tensor, core.tensor_descriptor_base):
        builtins(package)  # now, when no kernel runs and they are what they are
    patch_builtin.settled = True  # type: ignore[attr-defined]
    interpreter._patch_builtin = patch_builtin


def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float32]:
    """Return a b in float32: numpy adds along an axis that isn't the last one after the other."""
    left, right = a.astype(np.float32), b.astype(np.float32)
    return np.add.reduce(left[..., :, :, None] * right[..., None, :, :], axis=-2, dtype=np.float32)
