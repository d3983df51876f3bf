"""Products of Triton's interpreter whose sums have one order, whatever BLAS a machine has.

The interpreter multiplies by numpy, whose BLAS may sum a row in another order where it lies elsewhere
among the rows (OpenBLAS on Zen 5 does). On a GPU a tile's rows are summed alike, and kernels rely on it.
"""

from __future__ import annotations

import sys
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


def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float32]:
    """Return a b in float32: numpy adds along an axis that isn't the last one after the other."""
    left, right = a.astype(np.float32), b.astype(np.float32)
    return np.add.reduce(left[..., :, :, None] * right[..., None, :, :], axis=-2, dtype=np.float32)
