"""A model's descriptions, looked through before any library builds what they describe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from inference.errors import ModelUnavailable

FILE_BYTES = 64 * 1024 * 1024
DEPTH = 32
# Numbers of a configuration by what its names end with; the largest models are far below. A number of
# layers beyond reason would have modules made until the memory is full, before any weight is missed.
COUNTS = ("layers", "layer", "heads", "groups", "experts", "blocks", "stages")
SIZES = ("size", "dim", "rank", "hidden", "embd", "inner", "ffn", "channels", "width")
MOST_COUNTED, LARGEST_SIZE = 4096, 2**24
INDEX = "model.safetensors.index.json"


def check_config(file: Path) -> None:
    """Raise ModelUnavailable for a config.json that describes no model that could be."""
    for name, value in _numbers(_read(file), 0, file):
        word = name.rsplit("_", 1)[-1].lower()
        most = MOST_COUNTED if word in COUNTS else LARGEST_SIZE if word in SIZES else None
        if most is not None and value > most:
            raise ModelUnavailable(
                f"{file} says that `{name}` is {value!r:.40}, and {most} is the most that any model has: the "
                "file is damaged, or not meant well"
            )


def check_index(directory: Path) -> None:
    """Raise ModelUnavailable if the index of the weights' files names any that aren't in the directory."""
    if not (directory / INDEX).is_file():
        return
    files = _read(directory / INDEX).get("weight_map")
    if not isinstance(files, dict):
        raise ModelUnavailable(f"{directory / INDEX} has no object `weight_map`: download it again")
    for name in {str(file) for file in files.values()}:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise ModelUnavailable(
                f"{directory / INDEX} names the file {name!r:.120}, and must name `*.safetensors` beside it"
            )


def _read(file: Path) -> dict[str, Any]:
    try:
        if file.stat().st_size > FILE_BYTES:
            raise ValueError(f"more than {FILE_BYTES} bytes")
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnavailable(f"{file} can't be read as JSON: {error}") from error
    if not isinstance(found, dict):
        raise ModelUnavailable(f"{file} must hold a JSON object, not {type(found).__name__}")
    return found


def _numbers(value: Any, depth: int, file: Path, name: str = "") -> Iterator[tuple[str, float]]:
    """Yield each number with the name of the member that it stands in."""
    if depth > DEPTH:
        raise ModelUnavailable(f"{file} is nested more than {DEPTH} deep: no model is described so")
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _numbers(item, depth + 1, file, key)
    elif isinstance(value, list):
        for item in value:
            yield from _numbers(item, depth + 1, file, name)
    elif isinstance(value, (int, float)) and not isinstance(value, bool):
        yield name, value
