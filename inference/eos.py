"""Which tokens end a sequence, as a model's files say it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from inference.errors import ModelUnavailable
from inference.model_files import read_object


def eos_token_ids(path: Path) -> tuple[int, ...]:
    """Return the tokens that end a sequence; raise ModelUnavailable for files that say it wrongly.

    A list in generation_config.json says them all. Otherwise they are what it names, or else config.json, and
    the tokenizer's, at which TGI ends texts then: the turns of a chat often end by that alone. What a model's
    class takes for its own doesn't count, as it may be another model's.
    """
    generation, config = path / "generation_config.json", path / "config.json"
    said = read_object(generation) if generation.is_file() else {}
    ids = _written(said, generation)
    if ids and isinstance(said["eos_token_id"], list):
        return ids
    if not ids and config.is_file():
        described = read_object(config)
        text = described.get("text_config")
        ids = _written(described, config) or (_written(text, config) if isinstance(text, dict) else ())
    return tuple(dict.fromkeys((*ids, *tokenizer_eos(path))))


def tokenizer_eos(path: Path) -> tuple[int, ...]:
    """Return the id of the tokenizer's end-of-sequence token, if its files name one.

    These files are the text side's, which reads them, and complains about them, by itself.
    """
    config = _read(path / "tokenizer_config.json")
    named = config.get("eos_token") or _read(path / "special_tokens_map.json").get("eos_token")
    text = named.get("content") if isinstance(named, dict) else named
    if not isinstance(text, str):
        return ()
    return tuple(dict.fromkeys(_ids_of(text, config, _read(path / "tokenizer.json"))))


def _ids_of(text: str, config: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> Iterator[int]:
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and token.get("content") == text and type(token.get("id")) is int:
            yield token["id"]
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict) and type(vocabulary.get(text)) is int:
        yield vocabulary[text]
    decoder = config.get("added_tokens_decoder")
    if tokenizer or not isinstance(decoder, dict):  # tokenizer.json wins, where there is one
        return
    for number, token in decoder.items():
        if isinstance(token, dict) and token.get("content") == text and number.isdecimal():
            yield int(number)


def _written(described: Mapping[str, Any], file: Path) -> tuple[int, ...]:
    given = described.get("eos_token_id")
    ids = given if isinstance(given, list) else [] if given is None else [given]
    if not all(type(each) is int for each in ids):
        raise ModelUnavailable(
            f"{file} says that `eos_token_id` is {given!r:.80}: it must be a token's id, or a list of ids"
        )
    return tuple(each for each in ids if each >= 0)  # -1 stands for none


def _read(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}
