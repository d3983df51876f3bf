"""What the compiler made of every kernel when they were last changed, which takes it two minutes.

    python -m tests.unit.inference.kernels_gpu.hopper_cases --write

The record is of certain sources and of one Triton: with others all is compiled.
"""

from __future__ import annotations

import hashlib
from importlib.metadata import version
from pathlib import Path

HERE = Path(__file__).parent
FILE = HERE / "hopper_cases.txt"
INFERENCE = HERE.parents[3] / "inference"


def of_sources() -> str:
    """Return a digest of the kernels, and of what launches them."""
    names = ("sampling/recipe", "kernels/state_parts", "kernels/reference")
    sources = [INFERENCE / f"{name}.py" for name in names]
    for folder in (INFERENCE / "kernels" / "gpu", INFERENCE / "gpu"):
        sources += folder.rglob("*.py")
    sources += HERE.glob("hopper*.py")
    digest = hashlib.sha256()
    for source in sorted(sources):
        digest.update(source.name.encode() + b"\0" + source.read_bytes() + b"\0")
    return digest.hexdigest()[:32]


def write(lines: list[str]) -> None:
    """Keep what was said of all cases."""
    FILE.write_text("\n".join([f"{of_sources()} triton {version('triton')}", *lines]) + "\n")


def of_what() -> tuple[str, str]:
    """Return the digest of the sources that the record is of, and the release of Triton."""
    digest, _, release = FILE.read_text().split("\n", 1)[0].split()
    return digest, release


def lines() -> list[str] | None:
    """Return what was said; None if the sources or Triton are others now."""
    if of_what() != (of_sources(), version("triton")):
        return None
    return FILE.read_text().splitlines()[1:]
