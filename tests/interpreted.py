"""Triton's interpreter: products whose sums have one order, whatever BLAS a machine has, and quicker calls.

The interpreter multiplies by numpy, whose BLAS may sum a row in another order where it lies elsewhere
among the rows (OpenBLAS on Zen 5 does). On a GPU a tile's rows are summed alike, and kernels rely on it.

For each call of a kernel's function it looks through all members of triton.language for those that it
has to replace. They are always the same ones, and looking took up to two fifths of what a kernel did; what
they are replaced by holds for a whole launch, whatever its kernel calls. Sums and products of integers are
computed twice more in 64 bits, and compared, for an assertion that is made where one debugs only. Shapes and
numpy's types are worked out again for each value, and there are few.
"""

from __future__ import annotations

import inspect
import math
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


def replace_once_a_launch() -> None:
    """Have the interpreter replace what a function sees at its first call of a launch alone."""
    interpreter: Any = sys.modules.get(_INTERPRETER)
    scope: Any = getattr(interpreter, "_LangPatchScope", None)
    if scope is None or getattr(interpreter._patch_lang, "settled", False):
        return
    patch_lang = interpreter._patch_lang
    replaced: set[Any] = set()  # the functions that were called since the launch began

    class Scope(scope):
        def restore(self) -> None:
            replaced.clear()
            super().restore()

    def patch(fn: Any) -> Any:
        if fn in replaced:
            return Scope()
        scope = patch_lang(fn)
        replaced.add(fn)
        return scope

    patch.settled = True  # type: ignore[attr-defined]
    interpreter._LangPatchScope = Scope
    interpreter._patch_lang = patch


def spare_what_is_known() -> None:
    """Have the interpreter work out shapes and types once, and nothing for assertions that aren't made."""
    interpreter: Any = sys.modules.get(_INTERPRETER)
    if interpreter is None or getattr(interpreter._get_np_dtype, "settled", False):
        return
    core, semantic = interpreter.tl.core, interpreter.interpreter_semantic
    get_np_dtype, check_overflow = interpreter._get_np_dtype, semantic.binary_op_sanitize_overflow_impl
    np_dtypes: dict[str, Any] = {}
    make_block, blocks = core.block_type.__init__, dict[tuple[Any, ...], dict[str, Any]]()

    @cache
    def shaped(sizes: tuple[int, ...]) -> tuple[Any, Any]:
        return core.constexpr(math.prod(sizes)), core.tuple([core.constexpr(each) for each in sizes])

    def begin(self: Any, handle: Any, type: Any) -> None:
        self.handle, self.type, self.dtype = handle, type, type.scalar
        self.numel, self.shape = shaped(tuple(type.shape) if type.is_block() else ())

    def begin_block(self: Any, element_ty: Any, shape: Any) -> None:
        form = element_ty.name, *shape
        known = all(type(each) is int for each in shape)  # others may compare to anything
        if known and form in blocks:
            vars(self).update(blocks[form], element_ty=element_ty)
            return
        make_block(self, element_ty, shape)
        if known:
            blocks[form] = {**vars(self)}

    def np_dtype(of: Any) -> Any:
        if of.name not in np_dtypes:
            np_dtypes[of.name] = get_np_dtype(of)
        return np_dtypes[of.name]

    def check_if_asserted(*given: Any) -> None:
        if semantic.builder.options.debug:
            check_overflow(*given)

    np_dtype.settled = True  # type: ignore[attr-defined]
    core.tensor.__init__ = begin
    core.block_type.__init__ = begin_block
    interpreter._get_np_dtype = np_dtype
    semantic.binary_op_sanitize_overflow_impl = check_if_asserted


def product(a: NDArray[Any], b: NDArray[Any]) -> NDArray[np.float32]:
    """Return a b in float32: numpy adds along an axis that isn't the last one after the other."""
    left, right = a.astype(np.float32), b.astype(np.float32)
    return np.add.reduce(left[..., :, :, None] * right[..., None, :, :], axis=-2, dtype=np.float32)
