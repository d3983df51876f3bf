"""Building the C extension: what an install does with a compiler, and without one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "inference" / "kernels" / "native"


def listed(key: str) -> set[str]:
    """Return what pyproject.toml says about the extension."""
    extension = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"][0]
    return set(extension[key])


def test_every_source_is_listed() -> None:
    here = {path.relative_to(ROOT).as_posix() for path in SOURCES.iterdir()}
    assert here == listed("sources") | listed("depends")


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
