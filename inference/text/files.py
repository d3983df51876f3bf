"""The small files of a model that text needs: found in a directory, or fetched from the hub."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from inference.config import EMBEDDED_MODEL, ModelConfig
from inference.errors import ModelUnavailable
from inference.files.checkpoint import OTHER_FORMS
from inference.files.hub import find_snapshot
from inference.files.model_files import local_directory

LOG = logging.getLogger(__name__)

PATTERNS = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab*",
    "merges.txt",
    "*.model",
    "*.spm",
    "*.tiktoken",
    "tekken.json",
    "*.jinja",
    "chat_template.json",
    "processor_config.json",
    "config.json",
)
CODE_PATTERNS = ("*.py",)
MAX_FILE_BYTES = 256 * 1024 * 1024  # the largest tokenizer.json have some 35 MB
NAMED_TOKENS = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True)
class ModelFiles:
    """A directory with a model's files."""

    directory: Path

    def path(self, name: str) -> Path | None:
        """Return the path of a file, or None where the model has none of that name."""
        path = self.directory / name
        return path if path.is_file() else None

    def text(self, name: str) -> str | None:
        """Return the content of a file, or None."""
        path = self.path(name)
        if path is None:
            return None
        return read_text(path)

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON file's object, {} where there is none; raise ModelUnavailable if it is broken."""
        path = self.path(name)
        return {} if path is None else read_json(path)


def find_files(config: ModelConfig, progress: Callable[[str], None] = LOG.info) -> ModelFiles:
    """Return the model's files, fetched if need be; raise ModelUnavailable."""
    if config.model_id is None:
        return ModelFiles(EMBEDDED_MODEL)
    local = local_directory(config.model_id)
    if local is not None:
        return ModelFiles(local)
    patterns = [*PATTERNS, *CODE_PATTERNS] if config.trust_remote_code else PATTERNS
    found = find_snapshot(config.model_id, config.revision, config, patterns, OTHER_FORMS, progress=progress)
    return ModelFiles(found)


def refuse_huge(path: Path) -> None:
    """Raise ModelUnavailable for a file of a model that is larger than any of its kind."""
    size = path.stat().st_size
    if size > MAX_FILE_BYTES:
        raise ModelUnavailable(
            f"{path} has {size} bytes, and {MAX_FILE_BYTES} are the most that are read: it is damaged, or "
            "not meant well"
        )


def read_text(path: Path) -> str:
    """Return what is in a file; raise ModelUnavailable if it isn't there, or isn't UTF-8."""
    try:
        refuse_huge(path)
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ModelUnavailable(f"{path} can't be read: {error}") from error


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file; raise ModelUnavailable if it is not one."""
    try:
        refuse_huge(path)
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ModelUnavailable(f"{path} can't be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise ModelUnavailable(f"{path} must hold a JSON object, not {type(value).__name__}")
    return value


def named_tokens(files: ModelFiles, tokenizer_config: dict[str, Any]) -> dict[str, str]:
    """Return the texts of the tokens with a role, by role: {"bos_token": "<s>", ...}.

    tokenizer_config.json says, and where it doesn't, special_tokens_map.json.
    """
    named = {}
    for source in (files.json("special_tokens_map.json"), tokenizer_config):
        for role in NAMED_TOKENS:
            text = token_content(source.get(role))
            if text is not None:
                named[role] = text
    return named


def token_content(token: object) -> str | None:
    """Return the text of a token that is written as a string or as an object."""
    if isinstance(token, dict):
        token = token.get("content")
    return token if isinstance(token, str) else None
