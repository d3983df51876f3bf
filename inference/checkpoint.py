"""Where a model's files are: the embedded model, a local directory, or the hub."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from inference.config import EMBEDDED_MODEL, ModelConfig
from inference.errors import ModelUnavailable
from inference.model_files import check_config, check_index
from inference.safetensors import read_header

LOG = logging.getLogger(__name__)

_HUB_SECONDS = 5.0  # for what the model can be served without
_PATTERNS = ("*.json", "*.safetensors", "*.model", "*.jinja", "*.txt", "*.tiktoken")
_ANY_CODE = ("*.py", "*.bin")  # code, and pickles, which can run code
_FLOATS = {"F64", "F32", "F16", "BF16"}
_DTYPES = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # as torch calls them


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A directory that holds a model."""

    path: Path
    sha: str | None  # the hub's commit
    pipeline_tag: str | None = None  # as the hub says; None for a directory, or without the network


@dataclass(frozen=True, slots=True)
class Weights:
    """What the safetensors files hold, as their headers say."""

    floats: int  # numbers of 16 bits and more
    other_bytes: int  # quantised weights and the like, which keep their size
    matrices: int = 0  # of the floats, those of tensors with two dimensions
    dtypes: dict[str, str] = field(default_factory=dict)  # "float32", "float16" or "bfloat16", by name

    def size(self, item_bytes: int, matrix_item_bytes: int | None = None) -> int:
        """Return the bytes in memory when each float takes `item_bytes`, those of matrices something else."""
        of_matrices = item_bytes if matrix_item_bytes is None else matrix_item_bytes
        return (self.floats - self.matrices) * item_bytes + self.matrices * of_matrices + self.other_bytes

    @property
    def narrow(self) -> bool:
        """Return whether its floats are in 16 bits for the most part."""
        wide = sum(dtype == "float32" for dtype in self.dtypes.values())
        return 2 * wide < len(self.dtypes)


def find_checkpoint(config: ModelConfig, progress: Callable[[str], None]) -> Checkpoint:
    """Return the model's directory, downloaded if it has to be; raise ModelUnavailable."""
    if config.model_id is None:
        return Checkpoint(_checked(EMBEDDED_MODEL, config, "The embedded model is not installed"), None)
    path = Path(config.model_id).expanduser()
    if path.is_dir():
        return Checkpoint(_checked(path, config, f"`{path}` holds no model that can be loaded"), None)
    if path.is_absolute() or config.model_id.startswith((".", "~")) or config.model_id.count("/") > 1:
        raise ModelUnavailable(f"There is no directory `{path}`; give another, or a hub id (`org/name`)")
    progress(f"Looking for {config.model_id} in the hub's cache and on the hub")
    return _download(config)


def read_weights(path: Path) -> Weights:
    """Return what the directory's safetensors files hold; only their headers are read."""
    floats = other_bytes = matrices = 0
    dtypes: dict[str, str] = {}
    for file in path.glob("*.safetensors"):
        for name, tensor in read_header(file).items():
            if tensor.dtype not in _FLOATS:
                other_bytes += tensor.stop - tensor.start
                continue
            floats += tensor.count
            matrices += tensor.count if len(tensor.shape) == 2 else 0
            dtypes[name] = _DTYPES.get(tensor.dtype, "float32")
    return Weights(floats, other_bytes, matrices, dtypes)


def tokenizer_eos(path: Path) -> tuple[int, ...]:
    """Return the id of the tokenizer's end-of-sequence token, if its files name one."""
    try:
        eos = json.loads((path / "tokenizer_config.json").read_text())["eos_token"]
        added = json.loads((path / "tokenizer.json").read_text())["added_tokens"]
    except (FileNotFoundError, KeyError, ValueError, TypeError, RecursionError):
        return ()  # the files of the text side are read, and complained about, elsewhere
    text = eos["content"] if isinstance(eos, dict) else eos
    return tuple(token["id"] for token in added if token["content"] == text)


def _checked(path: Path, config: ModelConfig, complaint: str) -> Path:
    if not (path / "config.json").is_file():
        raise ModelUnavailable(f"{complaint}: no `config.json` in {path}")
    check_config(path / "config.json")
    check_index(path)
    if any(path.glob("*.safetensors")) or config.trust_remote_code:
        return path
    hint = "no `*.safetensors` file in it"
    if any(path.glob("*.bin")):
        hint += ", only pickled weights, which can run code: convert them, or start with --trust-remote-code"
    raise ModelUnavailable(f"{complaint}: {hint} ({path})")


def _download(config: ModelConfig) -> Checkpoint:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    assert config.model_id is not None
    patterns = [*_PATTERNS, *(_ANY_CODE if config.trust_remote_code else ())]
    try:
        found = snapshot_download(
            config.model_id,
            revision=config.revision,
            cache_dir=config.cache_dir,
            allow_patterns=patterns,
        )
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise ModelUnavailable(_why_not(config, error)) from error
    path = _checked(Path(found), config, f"`{config.model_id}` can't be loaded")
    return Checkpoint(path, path.name, _pipeline_tag(config.model_id, path.name))


def _pipeline_tag(model_id: str, sha: str) -> str | None:
    from huggingface_hub import model_info

    try:
        return model_info(model_id, revision=sha, timeout=_HUB_SECONDS).pipeline_tag
    except Exception as error:  # of whichever HTTP client the hub's library uses; the tag can be done without
        LOG.info("The hub's tag of %s is not known: %s", model_id, type(error).__name__)
        return None


def _why_not(config: ModelConfig, error: Exception) -> str:
    from huggingface_hub import errors

    name = config.model_id
    if isinstance(error, errors.GatedRepoError):
        return f"`{name}` is gated: accept its terms on https://huggingface.co/{name}, then set HF_TOKEN"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"`{name}` has no revision `{config.revision}`: give a branch, tag or commit that exists"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"The hub has no model `{name}`, or it is private: check the name, or set HF_TOKEN"
    if isinstance(error, errors.HFValidationError):
        return f"`{name}` is neither a directory nor a hub id (`org/name`)"
    return (
        f"`{name}` is not in the hub's cache and the hub can't be reached ({type(error).__name__}): "
        f"check the network, or download the model elsewhere and give its directory, "
        f"or start without a model for the embedded one"
    )
