"""Who makes a grammar ready: threads of this process, or processes that may end with it (`forked.py`)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from inference.grammar.build import compile_source, read_source
from inference.grammar.threads import start_threads
from inference.grammar.vocabulary import GrammarVocabulary
from inference.grammar_limits import GrammarLimits
from inference.types import CompiledGrammar, Grammar


class GrammarMaker(Protocol):
    """Makes grammars ready for use; called by several threads at once."""

    def make(self, grammar: Grammar, limits: GrammarLimits, begun: Callable[[], None]) -> CompiledGrammar:
        """Return a grammar ready for use, after a call of `begun` when work on it begins.

        Raises GrammarFault, GenerationFailed, and what native code panics with.
        """

    def close(self) -> None:
        """End what it has started; what is being made may fail."""


class MakerHere:
    """Makes grammars in this process, where the masks are computed, too."""

    def __init__(self, vocabulary: GrammarVocabulary, readers: int = 2) -> None:
        self.vocabulary = vocabulary
        self._readers = start_threads(readers, "grammar-reader")

    def make(self, grammar: Grammar, limits: GrammarLimits, begun: Callable[[], None]) -> CompiledGrammar:
        """Return the compiled grammar; raise GrammarFault."""
        begun()
        # A thread that yields must not hold the GIL for long: the others would wait with it
        source = self._readers.submit(read_source, grammar, limits).result()
        return compile_source(self.vocabulary, source, limits)

    def close(self) -> None:
        """Drop what waits to be read."""
        self._readers.shutdown(wait=False, cancel_futures=True)
