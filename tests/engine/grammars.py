"""JSON Schemas compiled for the embedded model, and the texts of its tokens."""

from __future__ import annotations

import json
from functools import cache

from inference.config import EMBEDDED_MODEL, ModelConfig
from inference.grammar.build import build
from inference.grammar.limits import GrammarLimits
from inference.grammar.vocabulary import GrammarVocabulary
from inference.text.files import ModelFiles
from inference.text.tokenizer import TextTokenizer, load_tokenizer
from inference.types import CompiledGrammar, Grammar, GrammarKind

EOS = (2, 0)  # of the embedded model


@cache
def tokenizer() -> TextTokenizer:
    """Return the embedded model's tokenizer."""
    return load_tokenizer(ModelFiles(EMBEDDED_MODEL), ModelConfig())


@cache
def vocabulary() -> GrammarVocabulary:
    """Return its tokens as grammars see them."""
    token_bytes = tokenizer().token_bytes()
    assert token_bytes is not None
    return GrammarVocabulary(token_bytes, tokenizer().special_ids, EOS)


def compiled(schema: object) -> CompiledGrammar:
    """Return the grammar of what a JSON Schema allows."""
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(schema))
    return build(vocabulary(), grammar, GrammarLimits())


def text_of(token_ids: list[int]) -> str:
    """Return the text of generated tokens, which must be whole characters."""
    token_bytes = tokenizer().token_bytes()
    assert token_bytes is not None
    return b"".join(token_bytes[token] for token in token_ids).decode()
