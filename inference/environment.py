"""What must be set before torch is imported; imports nothing heavy itself."""

from __future__ import annotations

import os
import tempfile
from collections.abc import MutableMapping
from pathlib import Path
from types import ModuleType

from inference.errors import ModelUnavailable
from inference.grammar.stack import STACK_BYTES

SWITCH_SECONDS = 0.0005  # that a thread keeps the interpreter while the engine's waits for it


def prepare_environment(environ: MutableMapping[str, str] = os.environ) -> None:
    """Set the process up for the engine; call it first, values that are set already stay.

    OpenMP's threads spin while they wait. Where the HTTP side or anything else shares the cores,
    that steals the time of the very thread they wait for: steps take up to ten times as long.
    Tokenizers are called from our own threads, so theirs would only add to them. llguidance's own
    threads recurse into grammars, for which Rust's usual stack of 2 MiB is little.
    """
    environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    environ.setdefault("RUST_MIN_STACK", str(STACK_BYTES))


def temporary_directory() -> str:
    """Return where temporary files go, which torch's import asks for, too; raise ModelUnavailable."""
    try:
        return tempfile.gettempdir()
    except FileNotFoundError as error:
        raise ModelUnavailable(
            f"{error.strerror}: none of them is there and can be written, with room in it. Mount a volume at "
            "/tmp, or set TMPDIR to a folder that can be written"
        ) from error


def child_environment(package: ModuleType) -> dict[str, str]:
    """Return the environment for a process of Python's that is to find this very package, first of all."""
    root = str(Path(str(package.__file__)).parents[1])
    paths = [root, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths))}


def bare_environment(package: ModuleType) -> dict[str, str]:
    """Return the environment for a process that reads what strangers wrote: no secret of the server's."""
    whole = child_environment(package)
    names = ["PYTHONPATH", "PATH", "LD_LIBRARY_PATH", "HOME"]
    kept = {name: whole[name] for name in names if name in whole}
    prepare_environment(kept)
    return {**kept, "OPENBLAS_NUM_THREADS": "1"}  # numpy's threads would do nothing
