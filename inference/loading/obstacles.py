"""What keeps transformers from loading a model, in words that say what to mend."""

from __future__ import annotations

import json
import logging
from collections.abc import Collection, Iterator, Mapping
from itertools import takewhile
from pathlib import Path
from typing import Any

from huggingface_hub.errors import (
    StrictDataclassClassValidationError,
    StrictDataclassFieldValidationError,
)
from transformers import PreTrainedModel

from inference.errors import ModelUnavailable
from inference.files.model_files import INDEX, read_object, safetensors_files
from inference.files.safetensors import read_header
from inference.models.file_names import FileNames

LOG = logging.getLogger(__name__)

_SHOWN = 3  # tensors in a message
_CHARACTERS = 400  # of what a library says
_VALIDATION = (StrictDataclassFieldValidationError, StrictDataclassClassValidationError)


def unavailable(name: str, directory: Path, error: Exception) -> ModelUnavailable:
    """Return the refusal of a model that transformers fails on."""
    said = _first_line(error)
    return ModelUnavailable(f"`{name}` can't be loaded: {said}{_hint(error, directory / 'config.json')}")


def check_loaded(name: str, model: PreTrainedModel, info: Mapping[str, Any]) -> None:
    """Raise ModelUnavailable if the files lack any of a model's weights, or have them in another shape.

    Those would be random numbers. `info` is transformers' account of what it loaded, which leaves out what
    is tied to something else. Buffers of transformers' own classes are computed anew, by their code; what
    becomes of those of a model that brings its code isn't known.
    """
    wrong = sorted(info["mismatched_keys"])
    if wrong:
        shown = ", ".join(
            f"`{tensor}` is {_shape(stored)} in the files and {_shape(expected)} by config.json"
            for tensor, stored, expected in wrong[:_SHOWN]
        )
        raise ModelUnavailable(
            f"`{name}` can't be loaded: {shown}{_and_more(wrong)}: its config.json and its weights are of "
            "different models, download both again"
        )
    missing = sorted(info["missing_keys"])
    buffers = {each for each, _ in model.named_buffers()} if _is_transformers_own(model) else set()
    computed = [each for each in missing if each in buffers]
    missing = [each for each in missing if each not in buffers]
    if computed:
        LOG.info("`%s`: the files lack %s%s, computed anew", name, _quoted(computed), _and_more(computed))
    if missing:
        kind, shown = type(model).__name__, _quoted(missing)
        raise ModelUnavailable(
            f"`{name}` can't be loaded: its files lack {len(missing)} of the weights that {kind} has, {shown}"
            f"{_and_more(missing)}: they aren't whole, or are another model's than config.json says"
        )


def check_experts(name: str, directory: Path, model: PreTrainedModel, tensors: Collection[str]) -> None:
    """Raise ModelUnavailable if the files lack some tensors of some experts, and have others of these.

    What transformers says then is of shapes that don't go together. `tensors` are all that the files have.
    """
    names = FileNames(model)
    pieces = {each: piece for each in tensors if (piece := names.piece(each)) is not None}
    own = dict(model.named_parameters())
    most = 1 + max((piece.expert for piece in pieces.values()), default=-1)  # of more, config.json alone says
    counts = {each.name: min(len(own[each.name]), most) for each in pieces.values() if each.name in own}
    known = {(piece.name, piece.expert, piece.part): each for each, piece in pieces.items()}
    lacking = {
        _renumbered(each, piece.expert, expert)
        for each, piece in pieces.items()
        for expert in range(counts.get(piece.name, 0))
        if (piece.name, expert, piece.part) not in known
    }
    lacking |= {
        f"{name}, part {part + 1} of {piece.parts}"  # which no expert has
        for name, piece in {piece.name: piece for piece in pieces.values()}.items()
        for part in range(piece.parts)
        if all((name, expert, part) not in known for expert in range(counts.get(name, 0)))
    }
    if lacking:
        first = min(lacking, key=_by_numbers)
        raise ModelUnavailable(
            f"`{name}` can't be loaded: its files lack `{first}`{_and_more(lacking, 1)}, and have other "
            f"weights of these experts{_file_of(first, directory)}: download the file again, or give the "
            "model that has them all"
        )


def _renumbered(tensor: str, expert: int, other: int) -> str:
    """Return what another expert's tensor of the same kind is called; a layer's number is before experts'."""
    before, _, behind = tensor.rpartition(f".{expert}.")
    return f"{before}.{other}.{behind}"


def _by_numbers(tensor: str) -> list[tuple[bool, int, str]]:
    return [(part.isdecimal(), int(part) if part.isdecimal() else 0, part) for part in tensor.split(".")]


def _file_of(lacking: str, directory: Path) -> str:
    """Return where the index says that a tensor is, or where what is called most alike is; "" if nowhere."""
    index = read_object(directory / INDEX) if (directory / INDEX).is_file() else {}
    if isinstance(file := index.get("weight_map", {}).get(lacking), str):
        return f"; by {INDEX} it is in {file}"
    files = {tensor: file for file in safetensors_files(directory) for tensor in read_header(file)}
    alike = max(sorted(files), key=lambda each: _begin_alike(each, lacking), default=None)
    return f"; {files[alike].name} has `{alike}`" if alike else ""


def _begin_alike(one: str, other: str) -> int:
    """Return how many parts of two names are the same until the first that isn't."""
    pairs = zip(one.split("."), other.split("."), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _is_transformers_own(model: PreTrainedModel) -> bool:
    return type(model).__module__.partition(".")[0] == "transformers"


def _quoted(tensors: list[str]) -> str:
    return ", ".join(f"`{tensor}`" for tensor in tensors[:_SHOWN])


def _and_more(found: Collection[object], shown: int = _SHOWN) -> str:
    more = len(found) - shown
    return f" and {more} more" if more > 0 else ""


def _shape(shape: Collection[int]) -> str:
    return "x".join(map(str, shape)) or "one number"


def _first_line(error: Exception) -> str:
    lines = (str(error).strip() or type(error).__name__).splitlines()
    if isinstance(error, _VALIDATION) and len(lines) > 1:  # the first line says that there is a second
        return "config.json: " + lines[1].partition(": ")[2][:_CHARACTERS]
    if isinstance(error, (KeyError, AttributeError, TypeError, ArithmeticError, IndexError)):
        return f"{type(error).__name__}: {lines[0][:_CHARACTERS]}"  # the message alone says nothing
    return lines[0][:_CHARACTERS]


def _hint(error: Exception, config: Path) -> str:
    text = str(error)
    if "trust_remote_code" in text:
        return "; it brings its own code: read it, then start with --trust-remote-code to run it"
    if "Unrecognized" in text and read_object(config).get("is_encoder_decoder") is True:
        return "; it has an encoder and a decoder, but is none of transformers' models for text"
    if "does not recognize this architecture" in text or "Unrecognized" in text:
        return "; this architecture needs another version of transformers, or is no text generation model"
    return "" if isinstance(error, _VALIDATION) else _suspects(error, config)  # those name the member


def _suspects(error: Exception, config: Path) -> str:
    """Return which members of a configuration a message may be about, "" if that can't be told."""
    try:
        members = [*_members(json.loads(config.read_text(encoding="utf-8")))]
    except (OSError, ValueError, RecursionError):
        return ""
    found: list[tuple[str, Any]]
    if isinstance(error, ZeroDivisionError):
        found = [(name, value) for name, value in members if type(value) is int and value == 0]
    else:
        words = str(error)
        found = [(name, value) for name, value in members if isinstance(value, str) and f"'{value}'" in words]
    if not found:
        return ""
    said = ", ".join(f"`{name}` is {value!r:.80}" for name, value in found[:_SHOWN])
    return f"; config.json says that {said}"


def _members(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _members(item, str(key))
    elif not isinstance(value, list):
        yield name, value
