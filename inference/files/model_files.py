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
NEVER_NEGATIVE = ("layers", "heads", "experts")  # where the name says that it is a number of them
CONFIG = "config.json"
ADAPTER = "adapter_config.json"
# What transformers looks for: one file, else an index of several
SAFETENSORS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLE, PICKLES_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
SHOWN = 3  # names of files in a message
MOST_SHOWN = 200  # characters of a model's name
EXPLICIT = "transformers_weights"  # the member of config.json that names another file, or index
SPECULATORS = ("medusa", "mlp_speculator")  # kinds of such heads that TGI knows
FORMATS = (".gguf", ".safetensors", ".bin")  # no hub id ends with them

_HOMELESS = "there is no such home directory: give its whole path"
_GGUF = (
    "GGUF, which isn't served: give the model that it was made of, as a directory with safetensors files or "
    "a hub id (`org/name`)"
)


def check_config(file: Path) -> None:
    """Raise ModelUnavailable for a config.json that describes no model that could be."""
    for name, value in _numbers(read_object(file), 0, file):
        word = name.rsplit("_", 1)[-1].lower()
        if value < 0 and word in NEVER_NEGATIVE and name.startswith(("num_", "n_")):
            raise ModelUnavailable(f"{file} says that `{name}` is {value!r:.40}: the file is damaged")
        most = MOST_COUNTED if word in COUNTS else LARGEST_SIZE if word in SIZES else None
        if most is not None and value > most:
            raise ModelUnavailable(
                f"{file} says that `{name}` is {value!r:.40}, and {most} is the most that any model has: the "
                "file is damaged, or not meant well"
            )


def check_directory(directory: Path) -> None:
    """Raise ModelUnavailable for a directory that holds something else instead of a model, saying what."""
    adapter = directory / ADAPTER
    if adapter.is_file() and not (safetensors_files(directory) or pickled_files(directory)):
        base = read_object(adapter).get("base_model_name_or_path")
        of = f"of `{base!s:.200}`" if base else "without the model that it is for"
        raise ModelUnavailable(
            f"`{directory}` holds a LoRA adapter {of}: serve its model, and give this directory by "
            "--lora-adapters, or merge it into its model (`merge_and_unload` of the package peft)"
        )
    if not (directory / CONFIG).is_file():
        if any(directory.glob("*.gguf")):
            raise ModelUnavailable(f"`{directory}` holds {_GGUF}")
        return
    described = read_object(directory / CONFIG)
    if "medusa_num_heads" in described or described.get("model_type") in SPECULATORS:
        base = described.get("base_model_name_or_path")
        of = f"of `{base!s:.200}`: serve that model" if base else "of another model: serve that"
        raise ModelUnavailable(
            f"`{directory}` holds heads that guess the tokens {of}; --speculate guesses without heads"
        )


def local_directory(model_id: str) -> Path | None:
    """Return a model's directory, None if its name is none's; raise ModelUnavailable if it can't be told."""
    try:
        path = Path(model_id).expanduser()
        check_no_file(model_id)
        return path if path.is_dir() else None
    except (OSError, RuntimeError) as error:  # without leave to look, too long, or of nobody's home
        reason = error.strerror if isinstance(error, OSError) else _HOMELESS
        shown = model_id if len(model_id) <= MOST_SHOWN else f"{model_id[:MOST_SHOWN]}..."
        raise ModelUnavailable(f"The model's directory `{shown}` can't be looked for: {reason}") from error


def check_no_file(model_id: str) -> None:
    """Raise ModelUnavailable if a model's name is that of a file, unless it may well be meant for the hub."""
    path = Path(model_id).expanduser()
    if not (path.is_absolute() or model_id.startswith(".") or path.suffix in FORMATS) or not path.is_file():
        return
    if path.suffix == ".gguf":
        raise ModelUnavailable(f"`{path}` is {_GGUF}")
    raise ModelUnavailable(f"`{path}` is a file: give the directory of its model, `{path.parent}`")


def check_index(directory: Path) -> None:
    """Raise ModelUnavailable if weights are loaded by an index that leads elsewhere, or to files not there.

    One that nothing is loaded by may be of files that aren't there. If it is of pickles, it isn't even read.
    """
    _indexed(directory / INDEX, ".safetensors")
    index = _index_in_use(directory)
    if index is None:
        return
    names = _indexed(index, ".bin" if index.name == PICKLES_INDEX else ".safetensors")
    missing = [name for name in names if not (directory / name).is_file()]
    if missing:
        raise ModelUnavailable(
            f"{index} names {len(names)} files, and {len(missing)} of them aren't there: "
            f"{_listed(missing)}: download them again"
        )


def safetensors_files(directory: Path) -> list[Path]:
    """Return the files that transformers will load the weights from; [] if it finds none."""
    explicit = _explicit(directory)
    if explicit is not None:
        if explicit.endswith(".index.json"):
            return [directory / name for name in _indexed(directory / explicit, ".safetensors")]
        return [directory / explicit]
    if (directory / SAFETENSORS).is_file():
        return [directory / SAFETENSORS]
    return [directory / name for name in _indexed(directory / INDEX, ".safetensors")]


def pickled_files(directory: Path) -> list[Path]:
    """Return the pickles that transformers will load where there are no safetensors; [] if it finds none."""
    if (directory / PICKLE).is_file():
        return [directory / PICKLE]
    return [directory / name for name in _indexed(directory / PICKLES_INDEX, ".bin")]


def _index_in_use(directory: Path) -> Path | None:
    """Return the index that transformers will go by; None if it loads one file, or finds nothing."""
    explicit = _explicit(directory)
    if explicit is not None:
        return directory / explicit if explicit.endswith(".index.json") else None
    for single, index in ((SAFETENSORS, INDEX), (PICKLE, PICKLES_INDEX)):
        if (directory / single).is_file():
            return None
        if (directory / index).is_file():
            return directory / index
    return None


def _explicit(directory: Path) -> str | None:
    file = directory / CONFIG
    name = read_object(file).get(EXPLICIT) if file.is_file() else None
    if name is None:
        return None
    if not isinstance(name, str) or Path(name).name != name or not (directory / name).is_file():
        raise ModelUnavailable(
            f"{file} says that `{EXPLICIT}` is {name!r:.120}, and no such file is beside it"
        )
    return name


def _indexed(index: Path, suffix: str) -> list[str]:
    """Return the names of the files that an index has; [] where there is none."""
    if not index.is_file():
        return []
    files = read_object(index).get("weight_map")
    if not isinstance(files, dict):
        raise ModelUnavailable(f"{index} has no object `weight_map`: download it again")
    names = sorted({str(file) for file in files.values()})
    for name in names:
        if Path(name).name != name or not name.endswith(suffix):
            raise ModelUnavailable(
                f"{index} names the file {name!r:.120}, and must name `*{suffix}` beside it"
            )
    return names


def _listed(names: list[str]) -> str:
    return ", ".join(names[:SHOWN]) + (", ..." if len(names) > SHOWN else "")


def read_object(file: Path) -> dict[str, Any]:
    """Return the object in one of a model's JSON files; raise ModelUnavailable if there is none."""
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
