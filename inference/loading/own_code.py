"""Whether a model's own code is run, which its repository brings."""

from __future__ import annotations

from pathlib import Path

from transformers.models.auto.modeling_auto import (
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)

from inference.config import ModelConfig
from inference.files.model_files import CONFIG, read_object

_CLASSES = (  # by names of architectures
    MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
)


def runs_code(directory: Path, config: ModelConfig) -> bool:
    """Return whether a model's own code is run: it may be, and transformers has no such architecture.

    Many repositories keep code that older releases needed. Where one calls its class otherwise than its
    family's, it is another model.
    """
    if not config.trust_remote_code:
        return False
    described = read_object(directory / CONFIG)
    family, named = described.get("model_type"), described.get("architectures")
    known = _known_classes(family) if isinstance(family, str) else set()
    first = named[0] if isinstance(named, list) and named else None
    return not known or (isinstance(first, str) and _plain(first) not in known)


def _known_classes(family: str) -> set[str]:
    found = (classes.get(family, ()) for classes in _CLASSES)
    return {_plain(name) for each in found for name in ((each,) if isinstance(each, str) else each)}


def _plain(name: str) -> str:
    """Return a class's name as it is compared: MPTForCausalLM is transformers' MptForCausalLM."""
    return name.replace("_", "").lower()
