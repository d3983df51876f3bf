"""Rebuild the C extension in place, only what changed; an install builds it through setuptools instead.

    python -m inference.kernels.build [--sanitize address]

With `--sanitize` the library is written beside the usual one, for a program that opens it by its
path and has the sanitizer's runtime preloaded.
"""

from __future__ import annotations

import argparse
import subprocess
import sysconfig
import tomllib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[2]
_PLATFORM = sysconfig.get_config_var("EXT_SUFFIX")


def main() -> None:
    """Build and say where the library is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sanitize", choices=["address", "thread", "undefined"])
    arguments = parser.parse_args()
    try:
        print(build(arguments.sanitize))
    except subprocess.CalledProcessError as error:
        raise SystemExit(f"{error.cmd[-1]} wasn't built") from None


def build(sanitize: str | None = None) -> Path:
    """Compile what is older than its sources or any header, link, and return the library's path.

    Raises CalledProcessError if the compiler finds a fault, which it has printed.
    """
    extension = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["ext-modules"][0]
    sources = [ROOT / source for source in extension["sources"]]
    flags = [*extension["extra-compile-args"], *([f"-fsanitize={sanitize}", "-g", "-O1"] if sanitize else [])]
    folder = ROOT / "build" / f"native-{sanitize or 'plain'}"
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(2) as pool:
        objects = list(pool.map(lambda source: _compile(source, flags, folder), sources))
    library = Path(__file__).parent / f"_cpu{f'_{sanitize}' if sanitize else ''}{_PLATFORM}"
    link = [*extension["extra-link-args"], *([f"-fsanitize={sanitize}"] if sanitize else [])]
    # a new file beside the old one, then renamed: a process that runs keeps the library it has opened
    fresh = library.with_suffix(".new")
    _run(["cc", "-shared", *map(str, objects), *link, "-lm", "-o", str(fresh)])
    fresh.replace(library)
    return library


def _compile(source: Path, flags: list[str], folder: Path) -> Path:
    target = folder / f"{source.stem}.o"
    if not _is_newer(target, [source, *source.parent.glob("*.h"), ROOT / "pyproject.toml"]):
        include = sysconfig.get_paths()["include"]
        _run(["cc", "-fPIC", *flags, f"-I{include}", "-c", str(source), "-o", str(target)])
    return target


def _is_newer(target: Path, sources: Iterable[Path]) -> bool:
    return target.exists() and all(target.stat().st_mtime > source.stat().st_mtime for source in sources)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True)


if __name__ == "__main__":
    main()
