"""Grammars that API processes sent, and the vocabularies they are for."""

from __future__ import annotations

import hashlib
import threading

from inference.grammar.compiler import GrammarCache
from inference.grammar.late import LateGrammar, SharedVocabulary
from inference.ipc.framing import FrameFault, pack
from inference.ipc.grammar_tokens import GrammarSource
from inference.ipc.messages import Vocabulary

VOCABULARIES = 4  # the processes of one server have the same


class Shelf:
    """Keeps vocabularies and grammars, those used last; used by the socket's thread."""

    def __init__(self) -> None:
        self._vocabularies: dict[str, SharedVocabulary] = {}  # by digest
        self._grammars: GrammarCache[LateGrammar] = GrammarCache()

    def add(self, message: Vocabulary) -> str:
        """Keep a vocabulary, and make it ready on a thread of its own; return its digest."""
        digest = hashlib.blake2b(pack(message)).hexdigest()
        if digest in self._vocabularies:
            return digest
        if len(self._vocabularies) >= VOCABULARIES:
            raise FrameFault(f"there must be <= {VOCABULARIES} vocabularies")
        shared = self._vocabularies[digest] = SharedVocabulary(message.tokens)
        threading.Thread(target=shared.get, name="grammar-vocabulary", daemon=True).start()
        return digest

    def grammar(self, digest: str | None, source: GrammarSource) -> LateGrammar:
        """Return a grammar, not compiled unless one like it was used lately; raise FrameFault."""
        if digest is None:
            raise FrameFault("a request with a grammar came before the vocabulary")
        key = (f"{digest} {source.limits}", source.lark)
        found = self._grammars.get(key)
        if found is None:
            found = LateGrammar(self._vocabularies[digest], source)
            self._grammars.put(key, found)
        return found
