"""JSON Schemas compiled for the embedded model, and the texts of its tokens."""

from __future__ import annotations

import json

from inference.grammar.build import build
from inference.grammar_limits import GrammarLimits
from inference.types import CompiledGrammar, Grammar, GrammarKind
from tests.embedded import tokenizer, vocabulary

EOS = (2, 0)  # of the embedded model


def compiled(schema: object) -> CompiledGrammar:
    """Return the grammar of what a JSON Schema allows."""
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(schema))
    return build(vocabulary(*EOS), grammar, GrammarLimits())


def text_of(token_ids: list[int]) -> str:
    """Return the text of generated tokens, which must be whole characters."""
    token_bytes = tokenizer().token_bytes()
    assert token_bytes is not None
    return b"".join(token_bytes[token] for token in token_ids).decode()
