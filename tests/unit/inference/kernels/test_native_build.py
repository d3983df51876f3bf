"""Building the C extension: what an install does with a compiler, and without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import threading
import tomllib
from pathlib import Path

import pytest
from setuptools import Distribution, Extension
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError

from inference.kernels.compiling import CompileInParallel
from inference.kernels.native import library_path, open_library

ROOT = Path(__file__).parents[4]
SOURCES = ROOT / "inference" / "kernels" / "native"


def listed(key: str) -> set[str]:
    """Return what pyproject.toml says about the extension."""
    extension = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"][0]
    return set(extension[key])


def can_build() -> bool:
    """Return whether an install finds what it takes."""
    header = Path(sysconfig.get_path("include"), "Python.h")
    return sys.platform == "linux" and shutil.which("cc") is not None and header.is_file()


def test_every_source_is_listed() -> None:
    here = {path.relative_to(ROOT).as_posix() for path in SOURCES.iterdir()}
    assert here == listed("sources") | listed("depends")


@pytest.mark.skipif(library_path() is None, reason="the extension isn't built")
def test_extension_of_other_sources_is_told_and_not_called(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("inference.kernels.native.INTERFACE", -1)
    assert open_library() is None
    assert "can't be used, install again: it was built from other sources" in caplog.text


@pytest.mark.skipif(not can_build(), reason="there is no compiler, or Python's headers are missing")
def test_where_it_can_be_built_it_was() -> None:
    assert library_path() is not None, "setuptools goes on without it: build_ext says why"
    assert open_library(threads=1) is not None


@pytest.mark.skipif(shutil.which("aarch64-linux-gnu-gcc") is None, reason="there is no compiler for ARM")
def test_arms_compiler_has_nothing_to_say_of_it(tmp_path: Path) -> None:
    sources = [
        ROOT / each for each in listed("sources") if not each.endswith("module.c")
    ]  # which wants Python
    line = [
        "aarch64-linux-gnu-gcc",
        "-fPIC",
        "-Werror",
        *listed("extra-compile-args"),
        "-c",
        *map(str, sources),
    ]
    done = subprocess.run(line, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


class Compiler:
    """Compiles nothing: each source waits for another one that is compiled beside it."""

    def __init__(self) -> None:
        self.two = threading.Barrier(2)

    def compile(self, sources: list[str], **options: object) -> list[str]:
        (source,) = sources
        assert options == {"debug": False}
        self.two.wait(timeout=20)
        return [source.replace(".c", ".o")]


class SmallCompiler:
    """Has no memory for several sources at once."""

    def __init__(self, broken: str = "") -> None:
        self.two, self.broken = threading.Barrier(2), broken

    def compile(self, sources: list[str], **options: object) -> list[str]:
        if len(sources) == 1:
            self.two.wait(timeout=20)
            raise CompileError("killed")
        if self.broken in sources:
            raise CompileError(f"{self.broken}: a fault")
        return [source.replace(".c", ".o") for source in sources]


def compile_by(compiler: Compiler | SmallCompiler, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return what is linked, of four sources on two cores."""
    linked: list[str] = []

    def build(self: build_ext, ext: Extension) -> None:
        linked.extend(self.compiler.compile(ext.sources, debug=False))

    monkeypatch.setattr(build_ext, "build_extension", build)
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {3, 5})
    command = CompileInParallel(Distribution())
    command.compiler = compiler
    command.build_extension(Extension("kernels", ["a.c", "b.c", "c.c", "d.c"]))
    return linked


def test_sources_are_compiled_beside_each_other_and_linked_in_their_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert compile_by(Compiler(), monkeypatch) == ["a.o", "b.o", "c.o", "d.o"]


def test_where_there_is_no_memory_for_two_each_is_compiled_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert compile_by(SmallCompiler(), monkeypatch) == ["a.o", "b.o", "c.o", "d.o"]


def test_a_source_with_a_fault_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CompileError, match=r"c\.c: a fault"):
        compile_by(SmallCompiler(broken="c.c"), monkeypatch)


def test_an_install_compiles_so() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    ours = f"{CompileInParallel.__module__}.{CompileInParallel.__qualname__}"
    assert settings["cmdclass"]["build_ext"] == ours


def test_without_a_compiler_the_install_succeeds(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(SOURCES, tmp_path / "inference" / "kernels" / "native")
    shutil.copy(ROOT / "inference" / "kernels" / "compiling.py", tmp_path / "inference" / "kernels")
    done = subprocess.run(
        [sys.executable, "-c", "import setuptools; setuptools.setup()", "build_ext", "--build-lib", "built"],
        cwd=tmp_path,
        env={**os.environ, "CC": "/no/compiler"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert 0 == done.returncode, done.stderr
    assert "failed" in done.stderr
    assert not list(tmp_path.rglob("*.so"))
