"""Where a model's files are: the embedded model, a local directory, or the hub."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from inference.config import EMBEDDED_MODEL, ModelConfig
from inference.errors import ModelUnavailable
from inference.files.hub import find_snapshot
from inference.files.model_files import (
    ADAPTER,
    check_config,
    check_directory,
    check_index,
    local_directory,
    pickled_files,
    safetensors_files,
)
from inference.files.safetensors import Tensor, read_header
from inference.quantised.method import check_plain, held_dtype, read_method

if TYPE_CHECKING:
    from inference.quantised.stored import Stored

LOG = logging.getLogger(__name__)

_HUB_SECONDS = 5.0  # for what the model can be served without
_PATTERNS = ("*.json", "*.safetensors", "*.model", "*.spm", "*.jinja", "*.txt", "*.tiktoken")
_PICKLES = ("*.bin",)  # which can run code
# Weights that nothing is loaded from: patterns match names with folders, and repositories hold the same
# model in several forms. What is read of folders is templates and code.
OTHER_FORMS = (
    *("*/*.safetensors", "*/*.bin", "*/*.json", "*/*.txt", "*/*.model", "*/*.tiktoken"),
    *(
        *("consolidated*.safetensors", "adapter_model*.safetensors", "adapter_model*.bin"),
        *("*.fp16.*", "*.fp16-*", "training_args.bin", "optimizer*.bin", "optimizer*.safetensors"),
    ),
)
_FLOATS = {"F64", "F32", "F16", "BF16"}
_NARROW_BYTES = 2  # of a number in 16 bits
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # as torch calls them


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory that holds a model."""

    path: Path
    sha: str | None  # the hub's commit
    pipeline_tag: str | None = None  # as the hub says; None for a directory, or without the network


@dataclass(frozen=True, slots=True)
class Weights:
    """What the files hold, as their headers say."""

    floats: int  # numbers of 16 bits and more
    other_bytes: int  # quantised weights and the like, which keep their size
    matrices: int = 0  # of the floats, those of tensors with two dimensions
    dtypes: dict[str, str] = field(default_factory=dict)  # "float32", "float16" or "bfloat16", by name
    in_16_bits: int = 0  # of the floats
    turned: int = 0  # of the matrices, those that are loaded in float32 whatever files have, as GPT-2's
    experts: int = 0  # of the matrices, those of experts in 16 bits: all are there before one is packed
    mixture: int = 0  # of one layer's experts, the most
    idle: int = 0  # of the floats, those of experts that a token isn't given to
    passing: int = 0  # numbers that a token's experts read and make, on CPUs: of all layers, the most
    kept: int = 0  # of the matrices, those that stay as they are where linears are rounded to 8 bits
    kept_heads: int = 0  # of these, those of an embedding that is the head, which is packed beside it then
    stored: Stored | None = None  # the files' quantised weights, counted as what they are expanded to

    def size(self, item_bytes: int, matrix_item_bytes: int | None = None) -> int:
        """Return the bytes in memory when each float takes `item_bytes`, those of matrices something else."""
        of_matrices = item_bytes if matrix_item_bytes is None else matrix_item_bytes
        linears, others = self.matrices - self.experts, (self.floats - self.matrices) * item_bytes
        others += self.experts * max(of_matrices, _NARROW_BYTES)
        if of_matrices < _NARROW_BYTES:
            linears += self.kept_heads - self.kept
            others += self.kept * (_NARROW_BYTES if self.narrow else item_bytes)
        return linears * of_matrices + others + self.other_bytes

    @property
    def narrow(self) -> bool:
        """Return whether its floats are in 16 bits for the most part."""
        return 2 * self.in_16_bits > self.floats

    @property
    def mostly_float16(self) -> bool:
        """Return whether more tensors are in float16 than in bfloat16."""
        kinds = list(self.dtypes.values())
        return kinds.count("float16") > kinds.count("bfloat16")


def find_checkpoint(config: ModelConfig, progress: Callable[[str], None]) -> Checkpoint:
    """Return the model's directory, downloaded if it has to be; raise ModelUnavailable."""
    if config.model_id is None:
        return Checkpoint(_checked(EMBEDDED_MODEL, config, "The embedded model is not installed"), None)
    directory = local_directory(config.model_id)
    if directory is not None:
        complaint = f"`{directory}` holds no model that can be loaded"
        return Checkpoint(_checked(directory, config, complaint), None)
    path = Path(config.model_id).expanduser()
    if path.is_absolute() or config.model_id.startswith((".", "~")) or config.model_id.count("/") > 1:
        raise ModelUnavailable(f"There is no directory `{path}`; give another, or a hub id (`org/name`)")
    progress(f"Looking for {config.model_id} in the hub's cache and on the hub")
    return _download(config, progress)


def read_weights(path: Path, *, pickled: bool = False) -> Weights:
    """Return what the files hold that the model will be loaded from; only their headers are read.

    Weights that were quantised before count as what they will be expanded to. `pickled`: pickles are read
    where there is nothing else. Raise ModelUnavailable if the files can't be read.
    """
    files = safetensors_files(path)
    if files or not pickled:
        tables = {file: read_header(file) for file in files}
        method, stored = read_method(path), None
        if method is not None:
            from inference.quantised.stored import find_stored  # needs torch, as below

            stored = find_stored(method, tables, held_dtype(path))
        tensors = {name: tensor for table in tables.values() for name, tensor in table.items()}
        if method is None:
            check_plain(tensors)
        given = tensors if stored is None else stored.tensors(tensors)
        return replace(_counted(given.items()), stored=stored)
    if (method := read_method(path)) is not None:
        raise method.variant("and pickles")
    from inference.files.pickled import (
        read_table,  # needs torch, which the command that downloads does without
    )

    return _counted(tensor for file in pickled_files(path) for tensor in read_table(file).items())


def _counted(tensors: Iterable[tuple[str, Tensor]]) -> Weights:
    floats = other_bytes = matrices = in_16_bits = 0
    dtypes: dict[str, str] = {}
    for name, tensor in tensors:
        if tensor.dtype not in _FLOATS:
            other_bytes += tensor.stop - tensor.start
            continue
        floats += tensor.count
        matrices += tensor.count if len(tensor.shape) == 2 else 0
        dtypes[name] = _DTYPES.get(tensor.dtype, "float32")
        in_16_bits += tensor.count if dtypes[name] != "float32" else 0
    return Weights(floats, other_bytes, matrices, dtypes, in_16_bits)


def _checked(path: Path, config: ModelConfig, complaint: str) -> Path:
    check_directory(path)
    if not (path / "config.json").is_file():
        raise ModelUnavailable(f"{complaint}: no `config.json` in {path}")
    check_config(path / "config.json")
    check_index(path)
    if safetensors_files(path) or (config.trust_remote_code and pickled_files(path)):
        if (path / ADAPTER).is_file():
            LOG.warning(
                "%s holds a LoRA adapter beside the model: it isn't applied unless --lora-adapters names it",
                path,
            )
        return path
    raise ModelUnavailable(f"{complaint}: {_without_weights(path)} ({path})")


def _without_weights(path: Path) -> str:
    found = sorted(file.name for file in path.glob("*.safetensors"))
    if found:
        index = "`model.safetensors`, and no `model.safetensors.index.json` names it"
        return f"none of its files is {index}, but there is {found[0]}: download the model again"
    hint = "no `*.safetensors` file in it"
    if any(path.glob("*.bin")):
        hint += ", only pickled weights, which can run code: convert them, or start with --trust-remote-code"
    return hint


def _download(config: ModelConfig, progress: Callable[[str], None]) -> Checkpoint:
    assert config.model_id is not None
    patterns = [*_PATTERNS, *(("*.py",) if config.trust_remote_code else ())]
    find = partial(find_snapshot, config.model_id, config=config, ignored=OTHER_FORMS, progress=progress)
    found = find(config.revision, patterns=patterns)
    if config.trust_remote_code and not safetensors_files(found):
        found = find(found.name, patterns=[*patterns, *_PICKLES])  # of the same commit
    path = _checked(found, config, f"`{config.model_id}` can't be loaded")
    if config.found is not None:
        return Checkpoint(path, path.name, config.found.pipeline_tag)
    return Checkpoint(path, path.name, _pipeline_tag(config.model_id, path.name))


def _pipeline_tag(model_id: str, sha: str) -> str | None:
    from huggingface_hub import model_info

    try:
        return model_info(model_id, revision=sha, timeout=_HUB_SECONDS).pipeline_tag
    except Exception as error:  # of whichever HTTP client the hub's library uses; the tag can be done without
        LOG.info("The hub's tag of %s is not known: %s", model_id, type(error).__name__)
        return None
