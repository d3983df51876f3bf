"""Which tokens end a sequence, as a model's files say it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from inference.errors import ModelUnavailable
from inference.files.model_files import read_object

# What the part of a model that writes texts is called, and what it may stand in
_PARTS = ("text_config", "thinker_config", "llm_config", "language_config", "decoder", "generator")
_DEPTH = 4


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
        ids = _configured(read_object(config), config)
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
    tokenizer = _read(path / "tokenizer.json")
    others = () if tokenizer.get("model") else ("vocab.json",)
    maps = (_read(path / name).get(text) for name in ("added_tokens.json", *others))
    ids: Iterable[Any] = tuple(_ids_of(text, tokenizer)) or chain(_configured_ids(text, config), maps)
    return tuple(dict.fromkeys(each for each in ids if type(each) is int))


def _ids_of(text: str, tokenizer: Mapping[str, Any]) -> Iterator[int]:
    """Return the ids that tokenizer.json has for a token: it wins, where it knows it."""
    added = tokenizer.get("added_tokens")
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and token.get("content") == text and type(token.get("id")) is int:
            yield token["id"]
    model = tokenizer.get("model")
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocabulary, dict) and type(vocabulary.get(text)) is int:
        yield vocabulary[text]
    if isinstance(vocabulary, list):  # of a Unigram model, with scores
        yield from (
            at for at, piece in enumerate(vocabulary) if isinstance(piece, list) and text in piece[:1]
        )


def _configured_ids(text: str, config: Mapping[str, Any]) -> Iterator[int]:
    """Return the ids under which tokenizer_config.json adds a token."""
    decoder = config.get("added_tokens_decoder")
    for number, token in decoder.items() if isinstance(decoder, dict) else ():
        if isinstance(token, dict) and token.get("content") == text and number.isdecimal():
            yield int(number)


def _configured(described: Mapping[str, Any], file: Path, depth: int = 0) -> tuple[int, ...]:
    """Return what a configuration says, or else the one of its part that writes texts."""
    ids = _written(described, file)
    parts = [part for name in _PARTS if isinstance(part := described.get(name), dict)]
    for part in parts if depth < _DEPTH else ():
        ids = ids or _configured(part, file, depth + 1)
    return ids


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
