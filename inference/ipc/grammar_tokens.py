"""A model's tokens as grammars need them, and a grammar that was checked, as both go to other processes."""

from __future__ import annotations

import msgspec

from inference.grammar_limits import GrammarLimits


class GrammarTokens(msgspec.Struct, frozen=True, array_like=True):
    """What grammars must know of a vocabulary."""

    token_bytes: tuple[bytes, ...]  # what each id adds to a text
    special_ids: tuple[int, ...]
    eos_token_ids: tuple[int, ...]


class GrammarSource(msgspec.Struct, frozen=True, array_like=True):
    """A grammar that was checked and compiled once, for another process to compile again."""

    lark: str  # llguidance's dialect
    limits: GrammarLimits
    seconds: float  # that its compilation took
