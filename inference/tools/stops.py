"""Stop sequences of an answer that may call tools: they end what it says, and no call."""

from __future__ import annotations

from collections.abc import Sequence

from inference.stop import StopMatcher
from inference.tools.opening import Opening


class WordStops(StopMatcher):
    """Looks for stop sequences in the words before the calls of an answer alone.

    The client doesn't see how calls are written, and one that is cut is of no use to it. So a stop sequence
    that ends within a call matches nothing, and calls are released as they come. Until it is known whether
    text begins a call, nothing is looked for in it; then it is as if it came at once.
    """

    def __init__(self, stops: Sequence[str], opening: Opening) -> None:
        super().__init__(stops)
        self._opening = opening
        self._unknown = ""  # text that may be words or a part of a call
        self._early = 0  # characters at its beginning that came before the text might stop

    @property
    def in_calls(self) -> bool:
        return self._opening.found

    def push(self, text: str, *, may_stop: bool = True) -> str:
        if self.matched is not None:
            return super().push(text)
        if self._opening.found:
            return text
        self._unknown += text
        if not may_stop:
            self._early = len(self._unknown)
        words, _ = self._opening.push(text)
        return self._sort(len(words))

    def special(self, token_id: int) -> str:
        if self.matched is not None or self._opening.found:
            return ""
        return self._sort(len(self._opening.special(token_id)))

    def flush(self) -> str:
        return self._sort(len(self._unknown)) + super().flush()

    def _sort(self, words: int) -> str:
        """Return what may be shown now that the first unknown characters are `words`.

        All others are a call's if calls have begun.
        """
        early = min(self._early, words)
        shown = super().push(self._unknown[:early], may_stop=False)
        shown += super().push(self._unknown[early:words])
        self._unknown, self._early = self._unknown[words:], self._early - early
        if self.matched is None and not self._opening.found:
            return shown
        rest, self._unknown = self._unknown, ""
        if self.matched is not None:
            self.behind += rest
            return shown
        return shown + super().flush() + rest
