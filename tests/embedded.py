"""The embedded model's tokens, for tests of what is said in them."""

from __future__ import annotations

from functools import cache

from inference.config import EMBEDDED_MODEL, ModelConfig
from inference.grammar.vocabulary import GrammarVocabulary
from inference.ipc.grammar_tokens import GrammarTokens
from inference.text.files import ModelFiles
from inference.text.tokenizer import TextTokenizer, load_tokenizer


@cache
def tokenizer() -> TextTokenizer:
    """Return the embedded model's tokenizer."""
    return load_tokenizer(ModelFiles(EMBEDDED_MODEL), ModelConfig())


def tokens(*eos: int) -> GrammarTokens:
    """Return what grammars must know of its tokens, some of which end a text."""
    token_bytes = tokenizer().token_bytes()
    assert token_bytes is not None
    return GrammarTokens(tuple(token_bytes), tuple(sorted(tokenizer().special_ids)), eos)


@cache
def vocabulary(*eos: int) -> GrammarVocabulary:
    """Return its tokens as grammars see them, some of which end a text."""
    return GrammarVocabulary.of(tokens(*eos))
