"""Building the C extension: what an install does with a compiler, and without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest

from inference.kernels.native import library_path, open_library

ROOT = Path(__file__).parents[3]
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


def test_without_a_compiler_the_install_succeeds(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path)
    shutil.copytree(SOURCES, tmp_path / "inference" / "kernels" / "native")
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
