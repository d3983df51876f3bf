"""Adapters that are named while the server runs: read below one directory, and nowhere else."""

from __future__ import annotations

import os
from pathlib import Path

from inference.errors import AdapterRefused, ModelUnavailable
from inference.files.adapters import WEIGHTS, AdapterFiles, read_files
from inference.files.model_files import ADAPTER

MOST_CHARACTERS = 1024  # of a path


def allowed_files(name: str, path: str, root: str) -> AdapterFiles:
    """Return the files of an adapter, by its path below `root` or the whole of it; raise AdapterRefused.

    Links are followed first, so that none leads elsewhere, whatever there is.
    """
    directory = _below(name, path, os.path.realpath(root))
    if not directory.is_dir():
        raise AdapterRefused(
            f"`lora_path` must be a directory with an adapter's files. There is none: {path}", missing=True
        )
    for file in (ADAPTER, WEIGHTS):
        _below(name, str(directory / file), os.path.realpath(root))
    try:
        return read_files(name, directory)
    except ModelUnavailable as error:
        raise AdapterRefused(why_not(name, error, root)) from error
    except (OSError, UnicodeError) as error:
        raise AdapterRefused(f"The adapter `{name}` can't be read: {within(error, root)}") from error


def why_not(name: str, error: ModelUnavailable, root: str) -> str:
    """Return why an adapter can't be loaded, with its name and, of paths, what is below `root`."""
    said = within(error, root)
    named = f"The adapter `{name}` can't be loaded: "
    return said if f"`{name}`" in said else f"{named}{said}"


def within(error: Exception, root: str) -> str:
    """Return what an error says with paths as they are below `root`; the rest is nobody's business."""
    said = str(error)
    for above in (os.path.realpath(root), root):
        said = said if above.strip(os.sep) == "" else said.replace(above.rstrip(os.sep) + os.sep, "")
    return said


def _below(name: str, path: str, root: str) -> Path:
    """Return where a path leads; raise AdapterRefused unless that is below the root."""
    shown = path if len(path) <= MOST_CHARACTERS else f"{path[:MOST_CHARACTERS]}..."
    try:
        found = os.path.realpath(os.path.join(root, path))
        below = os.path.commonpath((root, found)) == root and found != root
    except (OSError, ValueError):  # a character that no path has, or too many of them
        below = False
    if below and len(path) <= MOST_CHARACTERS:
        return Path(found)
    raise AdapterRefused(
        f"`lora_path` must be a directory below the one that --lora-directory allows, by its path there or "
        f"the whole of it, of at most {MOST_CHARACTERS} characters. Given for `{name}`: {shown}"
    )
