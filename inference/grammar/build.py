"""From a grammar as a request has it to one that masks can be computed with; slow, for threads."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

import numpy as np

from inference.grammar.compiled import HEADER, LarkGrammar
from inference.grammar.complaints import fault_of, located
from inference.grammar.fault import GrammarFault
from inference.grammar.regex import regex_grammar
from inference.grammar.schema import prepare, standalone
from inference.grammar.tree import Place, SchemaTree
from inference.grammar.vocabulary import GrammarVocabulary
from inference.grammar_limits import GrammarLimits
from inference.types import Grammar, GrammarKind

START = re.compile(r"^start: ", re.MULTILINE)
PROBED_TOKENS = 8  # of a text that is tried, as some grammars compile at once and explode at the second token


@dataclass(frozen=True, slots=True)
class Source:
    """A grammar that was read, as llguidance takes it."""

    lark: str
    tree: SchemaTree | None = None  # of a schema: where to look for what llguidance complains of


def build(vocabulary: GrammarVocabulary, grammar: Grammar, limits: GrammarLimits) -> LarkGrammar:
    """Return the compiled grammar; raise GrammarFault."""
    return compile_source(vocabulary, read_source(grammar, limits), limits)


def read_source(grammar: Grammar, limits: GrammarLimits) -> Source:
    """Return a grammar as llguidance takes it, checked; raise GrammarFault. Python's part of the work."""
    source = _read_source(grammar, limits)
    if not grammar.lead:
        return source
    return replace(source, lark=grammar.lead + START.sub("answer: ", source.lark, count=1))


def _read_source(grammar: Grammar, limits: GrammarLimits) -> Source:
    if grammar.kind is GrammarKind.JSON_SCHEMA:
        tree, reduced = prepare(grammar.source, limits)
        return Source(f"start: %json {reduced}", tree)
    if grammar.kind is GrammarKind.REGEX:
        return Source(regex_grammar(grammar.source, limits))
    size = len(grammar.source.encode())
    if size > limits.lark_bytes:
        raise GrammarFault(f"a grammar must have <= {limits.lark_bytes} bytes. Given: {size}. Shorten it")
    return Source(grammar.source)


def compile_source(vocabulary: GrammarVocabulary, source: Source, limits: GrammarLimits) -> LarkGrammar:
    """Return the compiled grammar; raise GrammarFault. Almost all of it runs without the GIL."""
    compiled = LarkGrammar(vocabulary, source.lark, limits)
    complaint = compiled.error or probe(compiled)
    if not complaint:
        return compiled
    if source.tree is not None:
        raise _located(complaint, source.tree, vocabulary, limits)
    raise _embedded_fault(complaint, source.lark, vocabulary, limits) or fault_of(complaint)


def _located(
    complaint: str, tree: SchemaTree, vocabulary: GrammarVocabulary, limits: GrammarLimits
) -> GrammarFault:
    def attempt(place: Place) -> str:
        return LarkGrammar(vocabulary, f"start: %json {standalone(tree, place, limits)}", limits).error

    return located(complaint, tree, attempt)


def _embedded_fault(
    complaint: str, lark: str, vocabulary: GrammarVocabulary, limits: GrammarLimits
) -> GrammarFault | None:
    """Return the fault within a `%json` or a text of a grammar; None if the complaint is of something else.

    A comment in the line before names the schema.
    """
    found = re.match(r"at (\d+)\(\d+\): (failed to compile JSON schema)?", complaint)
    lines = (HEADER + lark).split("\n")  # as llguidance counts them: names may hold what else breaks lines
    if found is None or int(found[1]) > len(lines):
        return None
    at = int(found[1]) - 1
    if not found[2] and lines[at - 1].startswith("// "):
        return GrammarFault(fault_of(complaint).reason, label=lines[at - 1].removeprefix("// "))
    if not found[2] or "%json " not in lines[at]:
        return None
    tree, _ = prepare(lines[at].partition("%json ")[2], limits)
    fault = _located(complaint, tree, vocabulary, limits)
    label = lines[at - 1].removeprefix("// ") if lines[at - 1].startswith("// ") else ""
    return GrammarFault(fault.reason, fault.pointer, label)


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
