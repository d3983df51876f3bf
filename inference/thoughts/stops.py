"""Stop sequences of an answer whose thoughts are told apart: they end what it says, and no thought."""

from __future__ import annotations

from inference.stop import Stops
from inference.thoughts.types import Split, Splitter


class AnswerStops:
    """Looks for stop sequences in the words of an answer alone, by the matcher for these."""

    def __init__(self, words: Stops, splitter: Splitter) -> None:
        self._words = words
        self._splitter = splitter
        self._early = 0  # characters held by the splitter that came before the text might stop

    @property
    def matched(self) -> str | None:
        """Return the stop sequence that was found."""
        return self._words.matched

    @property
    def behind(self) -> str:
        """Return the text that came after it."""
        return self._words.behind

    @property
    def in_calls(self) -> bool:
        """Return whether stop sequences end nothing where the text is now."""
        return self._splitter.thinking or self._words.in_calls

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Take more text and return what may be shown; nothing once a stop sequence was found."""
        if self.matched is not None:
            return self._words.push(text)
        if not may_stop:
            self._early += len(text)
        return self._shown(self._splitter.push(text))

    def special(self, token_id: int) -> str:
        """Take a special token, which has no visible text, and return what may be shown for it."""
        if self.matched is not None:
            return ""
        shown = self._shown(self._splitter.special(token_id))
        return shown if self._splitter.thinking else shown + self._words.special(token_id)

    def flush(self) -> str:
        """Return what was held back; call it when no more text comes."""
        shown = "" if self.matched is not None else self._shown(self._splitter.rest())
        return shown + self._words.flush()

    def _shown(self, split: Split) -> str:
        """Return what may be shown; a stop sequence that has begun ends where the words are interrupted."""
        before = self._words.flush() if split.lead else ""
        self._early = max(0, self._early - len(split.lead))
        early, self._early = split.words[: self._early], max(0, self._early - len(split.words))
        shown = self._words.push(early, may_stop=False)
        return before + split.lead + shown + self._words.push(split.words[len(early) :])
