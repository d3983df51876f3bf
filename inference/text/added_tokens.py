"""Tokens that stand whole in a text, as a model's files describe them beside tokenizer.json."""

from __future__ import annotations

from collections.abc import Collection
from itertools import groupby
from typing import Any

from tokenizers import AddedToken, Tokenizer

from inference.text.files import token_content

EXTRA = ("additional_special_tokens", "extra_special_tokens")
FLAGS = ("lstrip", "rstrip", "single_word", "normalized")


def add_tokens(
    tokenizer: Tokenizer, tokenizer_config: dict[str, Any], listed: dict[str, int], named: Collection[str]
) -> None:
    """Add tokens as transformers does; `listed` are those of added_tokens.json, `named` those with a role.

    What tokenizer_config.json says of one counts, also of one that tokenizer.json has. One that is named and
    in the vocabulary is found in texts whole.
    """
    if tokenizer_config.get("added_tokens_decoder"):
        _add_configured(tokenizer, tokenizer_config["added_tokens_decoder"])
    else:
        _add_listed(tokenizer, listed, named)
    added = tokenizer.get_added_tokens_decoder()
    ids = {text: tokenizer.token_to_id(text) for text in sorted(named)}
    whole = [text for text, token_id in ids.items() if token_id is not None and token_id not in added]
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in whole])


def _add_configured(tokenizer: Tokenizer, described: dict[str, Any]) -> None:
    """Add the tokens of tokenizer_config.json, in the order of their ids, but for those that are there so.

    Those of a kind at once: each call has the library look at all there are.
    """
    known = {token.content: token for token in tokenizer.get_added_tokens_decoder().values()}
    wanted = []
    for _, token in sorted(described.items(), key=lambda item: int(item[0])):
        content, before = token["content"], known.get(token["content"])
        options = {} if before is None else {flag: getattr(before, flag) for flag in FLAGS}
        options |= {flag: token[flag] for flag in FLAGS if flag in token}
        added = AddedToken(content, special=bool(token.get("special")), **options)
        if before is None or _kind(before) != _kind(added):
            wanted.append(added)
    for special, run in groupby(wanted, key=lambda token: token.special):
        add = tokenizer.add_special_tokens if special else tokenizer.add_tokens
        add([*run])


def _kind(token: AddedToken) -> list[bool]:
    """Return how a token is found and shown."""
    return [token.special, *(getattr(token, flag) for flag in FLAGS)]


def _add_listed(tokenizer: Tokenizer, listed: dict[str, int], special: Collection[str]) -> None:
    """Add the tokens that only added_tokens.json knows, of a model saved by transformers before 4.34."""
    for content in sorted(listed, key=listed.__getitem__):
        if tokenizer.token_to_id(content) is None:
            is_special = content in special
            added = AddedToken(content, special=is_special, normalized=not is_special)
            tokenizer.add_special_tokens([added]) if is_special else tokenizer.add_tokens([added])


def special_texts(
    tokenizer_config: dict[str, Any], special_map: dict[str, Any], named: dict[str, str]
) -> frozenset[str]:
    """Return the texts of the tokens that the model's files name as special."""
    extra: Any = next(
        filter(None, (source.get(name) for source in (tokenizer_config, special_map) for name in EXTRA)), []
    )
    listed = extra.values() if isinstance(extra, dict) else extra
    return frozenset((*named.values(), *filter(None, map(token_content, listed))))
