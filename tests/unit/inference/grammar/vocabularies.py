"""A vocabulary of single bytes, and what follows a grammar in it."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np

from inference.grammar.build import build
from inference.grammar.compiled import LarkGrammar
from inference.grammar.vocabulary import GrammarVocabulary
from inference.grammar_limits import GrammarLimits
from inference.types import Grammar, GrammarKind

CALL, PIECE, SPECIAL, END, STOP = range(256, 261)  # ids behind the 256 bytes
TOKENS = [*(bytes([value]) for value in range(256)), b"<call>", b'": ', b"<call>", b"", b"<stop>"]
VOCABULARY = GrammarVocabulary(TOKENS, frozenset({SPECIAL}), (END, STOP))
LIMITS = GrammarLimits()


def lark(source: str, limits: GrammarLimits = LIMITS) -> LarkGrammar:
    """Return a compiled Lark grammar."""
    return build(VOCABULARY, Grammar(kind=GrammarKind.LARK, source=source), limits)


def regex(pattern: str, limits: GrammarLimits = LIMITS) -> LarkGrammar:
    """Return a compiled regular expression."""
    return build(VOCABULARY, Grammar(kind=GrammarKind.REGEX, source=pattern), limits)


def schema(value: Any, limits: GrammarLimits = LIMITS) -> LarkGrammar:
    """Return a compiled JSON Schema."""
    source = json.dumps(value, ensure_ascii=False)
    return build(VOCABULARY, Grammar(kind=GrammarKind.JSON_SCHEMA, source=source), limits)


def follows(grammar: LarkGrammar, text: str) -> bool:
    """Return whether a whole text is one of a grammar's."""
    matcher = grammar.start()
    return all(matcher.accept(byte) for byte in text.encode()) and END in allowed(grammar, text.encode())


def allowed(grammar: LarkGrammar, ids: Any = ()) -> set[int]:
    """Return which tokens may follow others."""
    matcher = grammar.start()
    for token_id in ids:
        assert matcher.accept(token_id)
    mask = np.zeros(grammar.vocabulary.words, dtype=np.uint32)
    matcher.fill_mask(mask)
    assert matcher.error is None
    return bits(mask)


def bits(mask: np.ndarray[Any, np.dtype[np.uint32]]) -> set[int]:
    """Return the tokens of a mask."""
    return set(np.flatnonzero(np.unpackbits(mask.view(np.uint8), bitorder="little")).tolist())


def written(grammar: LarkGrammar, seed: int, tokens: int = 400) -> str | None:
    """Return a text drawn from a grammar, eager to end; None if it didn't within so many tokens."""
    draw, matcher = random.Random(seed), grammar.start()
    mask = np.zeros(grammar.vocabulary.words, dtype=np.uint32)
    text = b""
    for _ in range(tokens):
        matcher.fill_mask(mask)
        choices = bits(mask)
        if END in choices and (len(choices) <= 2 or draw.random() < 0.5):
            return text.decode()
        ending = sorted(choices & set(b'"]}'))
        closes = ending and draw.random() < 0.3
        token_id = draw.choice(ending if closes else sorted(choices - {END, STOP}))
        assert matcher.accept(token_id)
        text += TOKENS[token_id]
        if matcher.finished:
            return text.decode()
    return None
