"""Grammars on paper: a rule says which tokens may follow, a test says when the masks are ready."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Sequence

from inference.grammar.masks import Guide, Mask, MaskPool

Rule = Callable[[tuple[int, ...]], Collection[int]]  # of a text, the tokens that may follow


class PaperGrammar:
    """Allows what its rule says, EOS included; a text after which nothing else is allowed is finished."""

    def __init__(self, rule: Rule, eos: int | None = None, gate: threading.Event | None = None) -> None:
        self.rule = rule
        self.eos = eos
        self.gate = gate  # masks wait for it
        self.fills = 0  # masks that were asked for

    def start(self) -> PaperMatcher:
        """Return a matcher at the beginning of a text."""
        return PaperMatcher(self)


class PaperMatcher:
    """A text's way through such a grammar."""

    def __init__(self, grammar: PaperGrammar) -> None:
        self._grammar = grammar
        self._text: tuple[int, ...] = ()
        self.error: str | None = None

    def accept(self, token_id: int) -> bool:
        """Go on by a token."""
        if token_id not in self._grammar.rule(self._text):
            return False
        self._text += (token_id,)
        return True

    def fill_mask(self, mask: Mask) -> None:
        """Write what the rule says, once the gate is open."""
        self._grammar.fills += 1
        if self._grammar.gate is not None:
            assert self._grammar.gate.wait(60)
        mask[:] = 0
        for token in self._grammar.rule(self._text):
            mask[token // 32] |= 1 << token % 32

    @property
    def finished(self) -> bool:
        """Return whether nothing, or nothing but EOS, may follow."""
        return set(self._grammar.rule(self._text)) <= {self._grammar.eos}


class ManualPool(MaskPool):
    """Fills masks when it is told to, and not before; no threads."""

    def __init__(self, vocabulary: int, eos_token_ids: Sequence[int]) -> None:
        super().__init__(vocabulary, eos_token_ids)
        self.asked: list[Guide] = []

    def wait(self, guides: Sequence[Guide], seconds: float = 0.0) -> None:
        """Don't."""

    def fill(self, at: int = 0) -> None:
        """Fill one of the masks that were asked for."""
        guide = self.asked.pop(at)
        guide.compute()
        guide.ready = True

    def _submit(self, guide: Guide) -> None:
        self.asked.append(guide)


class WillingPool(ManualPool):
    """Fills the masks that somebody waits for."""

    def wait(self, guides: Sequence[Guide], seconds: float = 0.0) -> None:
        """Fill them."""
        for guide in guides:
            if guide in self.asked:
                self.fill(self.asked.index(guide))


def allowed(mask: Mask) -> set[int]:
    """Return the tokens whose bits are set."""
    return {
        32 * word + bit for word, bits in enumerate(mask.tolist()) for bit in range(32) if bits >> bit & 1
    }
