"""How an install compiles the C extension: several of its sources at a time, as setuptools doesn't by itself.

setuptools reads this file alone, before anything that it would import is there.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from typing import Any

from setuptools import Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

MOST_AT_ONCE = 8  # a compiler takes up to a quarter of a gigabyte


class CompileInParallel(build_ext):
    """setuptools' build_ext, with a compiler for each core."""

    def build_extension(self, ext: Extension) -> None:
        """Compile and link; raise CompileError for a source that has a fault.

        Where one fails all are compiled one after the other: there may be no memory for several.
        """
        compile_one_by_one = self.compiler.compile
        at_once = min(len(os.sched_getaffinity(0)), MOST_AT_ONCE) if hasattr(os, "sched_getaffinity") else 1

        def compile_at_once(sources: list[str], **options: Any) -> list[str]:
            try:
                with ThreadPoolExecutor(at_once) as pool:
                    parts = pool.map(lambda source: compile_one_by_one([source], **options), sources)
                    return list(chain.from_iterable(parts))  # in the order of the sources, as they are linked
            except CompileError:
                return list(compile_one_by_one(sources, **options))

        self.compiler.compile = compile_at_once
        try:
            super().build_extension(ext)
        finally:
            self.compiler.compile = compile_one_by_one
