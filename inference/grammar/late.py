"""Grammars that another process has checked, compiled again where the masks are computed.

Each was compiled once, within the limits that come along. Here the threads of the masks compile it before a
text's first mask, once for all texts that share it; the engine's own thread never does.
"""

from __future__ import annotations

import threading

import numpy as np
from numpy.typing import NDArray

from inference.grammar.compiled import LarkGrammar
from inference.grammar.vocabulary import GrammarVocabulary
from inference.ipc.grammar_tokens import GrammarSource, GrammarTokens
from inference.types import Matcher


class SharedVocabulary:
    """The tokens of grammars, made ready once, when one of them needs it."""

    def __init__(self, tokens: GrammarTokens) -> None:
        self._tokens: GrammarTokens | None = tokens
        self._lock = threading.Lock()
        self._made: GrammarVocabulary | None = None

    def get(self) -> GrammarVocabulary:
        """Return them as grammars see them; slow the first time."""
        with self._lock:
            if self._made is None:
                assert self._tokens is not None
                self._made = GrammarVocabulary.of(self._tokens)
                self._tokens = None
            return self._made


class LateGrammar:
    """A `CompiledGrammar` that is compiled when a matcher first needs it."""

    def __init__(self, vocabulary: SharedVocabulary, source: GrammarSource) -> None:
        self.source = source
        self._vocabulary = vocabulary
        self._lock = threading.Lock()
        self._compiled: LarkGrammar | None = None

    @property
    def seconds_to_compile(self) -> float:
        """Return how long it will take, by what it took the process that sent it; 0 once it is done."""
        compiled = self._compiled
        return self.source.seconds if compiled is None else compiled.seconds_to_start

    def start(self) -> LateMatcher:
        """Return a matcher at the beginning of a text; at once."""
        return LateMatcher(self)

    def compiled(self) -> LarkGrammar:
        """Return it compiled; slow the first time. Raises ValueError if it can't be."""
        with self._lock:
            if self._compiled is None:
                source = self.source
                made = LarkGrammar(self._vocabulary.get(), source.lark, source.limits)
                if made.error:
                    raise ValueError(f"the engine can't compile it: {made.error}")
                self._compiled = made
            return self._compiled


class LateMatcher:
    """A text's way through a grammar that may have to be compiled first; used by one thread at a time."""

    def __init__(self, grammar: LateGrammar) -> None:
        self._grammar = grammar
        self._matcher: Matcher | None = None

    @property
    def seconds_to_prepare(self) -> float:
        """Return how long `prepare` is going to take."""
        return self._grammar.seconds_to_compile

    def prepare(self) -> None:
        """Have the grammar compiled; raise ValueError if it can't be."""
        self._prepared()

    def accept(self, token_id: int) -> bool:
        """Go on by a token; false if the grammar doesn't allow it, or a limit was passed: see `error`."""
        return self._prepared().accept(token_id)

    def fill_mask(self, mask: NDArray[np.uint32]) -> None:
        """Write which tokens may come next."""
        self._prepared().fill_mask(mask)

    @property
    def finished(self) -> bool:
        """Return whether nothing but EOS can follow."""
        return self._prepared().finished

    @property
    def error(self) -> str | None:
        """Return why it can't go on."""
        return self._prepared().error

    def _prepared(self) -> Matcher:
        if self._matcher is None:
            matcher = self._grammar.compiled().start()
            matcher.prepare()
            self._matcher = matcher
        return self._matcher
