"""What generation_config.json asks for that requests say themselves here, as in TGI."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from inference.files.model_files import read_object

# Members that change what transformers' `generate` says, with the values by which they don't
_NEUTRAL: dict[str, Any] = {
    "do_sample": False,
    "temperature": 1.0,
    "top_k": None,
    "top_p": 1.0,
    "min_p": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
    "repetition_penalty": 1.0,
    "encoder_repetition_penalty": 1.0,
    "no_repeat_ngram_size": 0,
    "encoder_no_repeat_ngram_size": 0,
    "num_beams": 1,
    "length_penalty": 1.0,
    "min_length": 0,
    "min_new_tokens": None,
    "stop_strings": None,
    "bad_words_ids": None,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
    "sequence_bias": None,
    "forced_eos_token_id": None,
}
_SHOWN = 60  # characters of a value


def unheeded(directory: Path) -> str:
    """Return a line for the log that names what of a model's generation_config.json has no effect, or ""."""
    file = directory / "generation_config.json"
    said = read_object(file) if file.is_file() else {}
    asked = [
        f"{name}={said[name]!r:.{_SHOWN}}"
        for name, neutral in _NEUTRAL.items()
        if said.get(name) is not None and said[name] != neutral
    ]
    if not asked:
        return ""
    return f"generation_config.json has {', '.join(asked)}: requests say so themselves, as with TGI"
