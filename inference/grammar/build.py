"""From a grammar as a request has it to one that masks can be computed with; slow, for threads."""

from __future__ import annotations

import numpy as np

from inference.grammar.compiled import LarkGrammar
from inference.grammar.complaints import fault_of, located
from inference.grammar.fault import GrammarFault
from inference.grammar.limits import GrammarLimits
from inference.grammar.regex import regex_grammar
from inference.grammar.schema import prepare, standalone
from inference.grammar.tree import Place
from inference.grammar.vocabulary import GrammarVocabulary
from inference.types import Grammar, GrammarKind

PROBED_TOKENS = 8  # of a text that is tried, as some grammars compile at once and explode at the second token


def build(vocabulary: GrammarVocabulary, grammar: Grammar, limits: GrammarLimits) -> LarkGrammar:
    """Return the compiled grammar; raise GrammarFault."""
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        return _build_schema(vocabulary, grammar.source, limits)
    if grammar.kind is GrammarKind.REGEX:
        source = regex_grammar(grammar.source, limits)
    else:
        source = _checked_lark(grammar.source, limits)
    compiled = LarkGrammar(vocabulary, source, limits)
    complaint = compiled.error or probe(compiled)
    if complaint:
        raise fault_of(complaint)
    return compiled


def probe(grammar: LarkGrammar) -> str:
    """Return what is wrong with a grammar's first masks, "" for nothing."""
    matcher = grammar.start()
    mask = np.zeros(grammar.vocabulary.words, dtype=np.uint32)
    for _ in range(PROBED_TOKENS):
        matcher.fill_mask(mask)
        if matcher.error is not None:
            return matcher.error
        (allowed,) = np.nonzero(np.unpackbits(mask.view(np.uint8), bitorder="little"))
        if not allowed.size:
            return "NoExtension"
        matcher.accept(int(allowed[allowed.size // 2]))
        if matcher.finished:
            break
    return ""


def _build_schema(vocabulary: GrammarVocabulary, text: str, limits: GrammarLimits) -> LarkGrammar:
    tree, reduced = prepare(text, limits)

    def compiled(schema: str) -> LarkGrammar:
        return LarkGrammar(vocabulary, f"start: %json {schema}", limits)

    def attempt(place: Place) -> str:
        return compiled(standalone(tree, place, limits)).error

    grammar = compiled(reduced)
    complaint = grammar.error or probe(grammar)
    if complaint:
        raise located(complaint, tree, attempt)
    return grammar


def _checked_lark(source: str, limits: GrammarLimits) -> str:
    size = len(source.encode())
    if size > limits.lark_bytes:
        raise GrammarFault(f"a grammar must have <= {limits.lark_bytes} bytes. Given: {size}. Shorten it")
    return source
