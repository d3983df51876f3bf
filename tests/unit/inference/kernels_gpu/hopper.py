"""Compiles Triton's kernels for a Hopper GPU where there is none, just as their launchers ask for them.

The interpreter takes much that the compiler doesn't: shapes of products, types of branches, shared
memory beyond what a processor has. Triton's package brings a whole compiler, which needs no GPU. It
has to be told before it is imported that kernels aren't interpreted, hence a process of its own:

    python -m tests.unit.inference.kernels_gpu.hopper
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ.pop("TRITON_INTERPRET", None)

import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

import benchmarks.gpu.absent  # noqa: F401 - for machines that lack what the engine's process has beside it
from inference.kernels.gpu import launching
from tests.unit.inference.kernels_gpu import record

CAPABILITY = 90  # of a Hopper
# What PTX calls what they are compiled to; to read those of the code itself takes as long as to compile it
_PRODUCTS = {"wgmma.mma_async": "HGMMA", "mma.sync": "HMMA", "fma.rn.f32": "FFMA"}


@dataclass(frozen=True, slots=True)
class Compiled:
    """What became of one launch."""

    kernel: str
    shared: int = 0  # bytes
    registers: int = 0  # of a thread
    spilled: int = 0  # bytes of a thread's stack
    waits: bool = False  # for what was queued before it, and may come up before that
    products: str = ""  # which instructions multiply matrices: HGMMA, HMMA, or none

    def __str__(self) -> str:
        return (
            f"{self.kernel:24} {self.shared:7} bytes shared, {self.registers:3} registers,"
            f" {self.spilled:4} bytes spilled,"
            f" {'waits' if self.waits else 'follows'} {self.products}"
        )


class _Absent:
    """Stands in for the driver of a GPU that isn't there."""

    def get_current_target(self) -> Any:
        return GPUTarget("cuda", CAPABILITY, 32)

    def get_current_device(self) -> int:
        return 0

    def get_current_stream(self, device: int) -> int:
        return 0


class _Forgetful(dict[Any, Any]):
    """Keeps nothing: what was compiled can't be launched here, and each launch is to be seen."""

    def __setitem__(self, form: object, found: object) -> None:
        """Do nothing."""


launching._compiled = _Forgetful()


@contextmanager
def compiling(*, read: bool = True) -> Iterator[list[Compiled]]:
    """Have launches compile and not run; what is yielded grows by each kernel that wasn't known yet.

    Without `read` nothing is said of them but their names.
    """
    compiled: list[Compiled] = []
    known: dict[int, Any] = {}
    run = JITFunction.run

    def compile_only(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        kernel = run(self, *args, grid=grid, warmup=True, **kwargs)
        if isinstance(kernel, triton.FutureKernel):  # it is being compiled with others
            return kernel
        if id(kernel) not in known:
            known[id(kernel)] = kernel
            compiled.append(_read(self.__name__, kernel) if read else Compiled(self.__name__))
        return kernel

    driver.set_active(_Absent())
    JITFunction.run = compile_only
    try:
        yield compiled
    finally:
        JITFunction.run = run


def stop_at_triton_ir() -> None:
    """Have the compiler read and check kernels, and make no code of them, which is most of its work."""

    def stages(backend: Any = None, stages: dict[str, Any] | None = None, *told: Any) -> tuple[str, str]:
        if stages is not None:
            for stage in set(stages) - {"ttir"}:
                stages[stage] = _no_code
        return "no code", "no code"  # part of the name by which the compiler keeps what it has made

    triton.knobs.runtime.add_stages_inspection_hook = stages


def _no_code(module: Any, metadata: dict[str, Any]) -> bytes:
    metadata |= {"name": "none", "shared": 0, "cluster_dims": (1, 1, 1)}
    return b""


def _read(name: str, kernel: Any) -> Compiled:
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(kernel.asm["cubin"])
        file.flush()
        usage = _tool("cuobjdump", "--dump-resource-usage", file.name)
    registers, stack = (int(re.findall(rf"{what}:(\d+)", usage)[-1]) for what in ("REG", "STACK"))
    ptx = kernel.asm["ptx"]
    products = (
        [name for word, name in _PRODUCTS.items() if word in ptx] if "tt.dot" in kernel.asm["ttir"] else []
    )
    waits = kernel.metadata.launch_pdl and "griddepcontrol.wait" in ptx
    assert waits == kernel.metadata.launch_pdl, "who may come up early waits"
    return Compiled(name, kernel.metadata.shared, registers, stack, waits, " ".join(products[:1]))


def _tool(name: str, *arguments: str) -> str:
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([path, *arguments], check=True, capture_output=True, text=True).stdout


def main(cases: dict[str, Callable[[], object]]) -> None:
    """Compile the cases that are named on the command line, or all, and print what came of it.

    First all of them at once, as when a model is loaded; the last line says what that left out. What is
    printed is also kept, with `--write`.
    """
    writes, said = "--write" in sys.argv, []
    names, compiled_so_far = [each for each in sys.argv[1:] if each != "--write"] or list(cases), []
    triton.knobs.runtime.jit_post_compile_hook = lambda **told: compiled_so_far.append(told["fn"].name)
    driver.set_active(_Absent())
    with launching.compiling():
        for name in names:
            cases[name]()
    together = len(compiled_so_far)
    for name in names:
        with compiling() as compiled:
            cases[name]()
        for each in compiled:
            said.append(f"{name:32} {each}")
            print(said[-1], flush=True)
    late = compiled_so_far[together:]
    said.append(f"{together} compiled together, {len(late)} later: {' '.join(late)}")
    print(said[-1])
    if writes:
        record.write(said)
