"""Grammars that API processes sent, compiled again where the masks are computed.

The API process has checked each and compiled it once, within the limits that come along. Here the
threads of the masks compile it before a text's first mask, once for all texts that share it; the
engine's own thread never does.
"""

from __future__ import annotations

import hashlib
import threading

import numpy as np
from numpy.typing import NDArray

from inference.grammar.compiled import LarkGrammar
from inference.grammar.compiler import GrammarCache
from inference.grammar.vocabulary import GrammarVocabulary
from inference.process.framing import FrameFault, pack
from inference.process.messages import GrammarSource, Vocabulary
from inference.types import Matcher

VOCABULARIES = 4  # the processes of one server have the same


class Shelf:
    """Keeps vocabularies and grammars, those used last; used by the socket's thread."""

    def __init__(self) -> None:
        self._vocabularies: dict[str, SharedVocabulary] = {}  # by digest
        self._grammars: GrammarCache[ReceivedGrammar] = GrammarCache()

    def add(self, message: Vocabulary) -> str:
        """Keep a vocabulary, and make it ready on a thread of its own; return its digest."""
        digest = hashlib.blake2b(pack(message)).hexdigest()
        if digest in self._vocabularies:
            return digest
        if len(self._vocabularies) >= VOCABULARIES:
            raise FrameFault(f"there must be <= {VOCABULARIES} vocabularies")
        shared = self._vocabularies[digest] = SharedVocabulary(message)
        threading.Thread(target=shared.get, name="grammar-vocabulary", daemon=True).start()
        return digest

    def grammar(self, digest: str | None, source: GrammarSource) -> ReceivedGrammar:
        """Return a grammar, not compiled unless one like it was used lately; raise FrameFault."""
        if digest is None:
            raise FrameFault("a request with a grammar came before the vocabulary")
        key = (f"{digest} {source.limits}", source.lark)
        found = self._grammars.get(key)
        if found is None:
            found = ReceivedGrammar(self._vocabularies[digest], source)
            self._grammars.put(key, found)
        return found


class SharedVocabulary:
    """The tokens of a process's grammars, made ready once."""

    def __init__(self, message: Vocabulary) -> None:
        self._message: Vocabulary | None = message
        self._lock = threading.Lock()
        self._made: GrammarVocabulary | None = None

    def get(self) -> GrammarVocabulary:
        """Return them as grammars see them; slow the first time."""
        with self._lock:
            if self._made is None:
                assert self._message is not None
                sent = self._message
                special = frozenset(sent.special_ids)
                self._made = GrammarVocabulary(sent.token_bytes, special, sent.eos_token_ids)
                self._message = None
            return self._made


class ReceivedGrammar:
    """A `CompiledGrammar` that is compiled when a matcher first needs it."""

    def __init__(self, vocabulary: SharedVocabulary, source: GrammarSource) -> None:
        self._vocabulary = vocabulary
        self._source = source
        self._lock = threading.Lock()
        self._compiled: LarkGrammar | None = None

    @property
    def seconds_to_compile(self) -> float:
        """Return how long it will take, by what it took the process that sent it; 0 once it is done."""
        compiled = self._compiled
        return self._source.seconds if compiled is None else compiled.seconds_to_start

    def start(self) -> LateMatcher:
        """Return a matcher at the beginning of a text; at once."""
        return LateMatcher(self)

    def compiled(self) -> LarkGrammar:
        """Return it compiled; slow the first time. Raises ValueError if it can't be."""
        with self._lock:
            if self._compiled is None:
                source = self._source
                made = LarkGrammar(self._vocabulary.get(), source.lark, source.limits)
                if made.error:
                    raise ValueError(f"the engine can't compile it: {made.error}")
                self._compiled = made
            return self._compiled


class LateMatcher:
    """A text's way through a grammar that may have to be compiled first; used by one thread at a time."""

    def __init__(self, grammar: ReceivedGrammar) -> None:
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
