"""The text of one sequence as it grows: detokenised, and cut at the first stop sequence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from inference.stop import StopMatcher, Stops
from inference.text.detokenizer import TextStream


@dataclass(frozen=True, slots=True)
class TextStep:
    """What one token did to the text."""

    text: str  # the token's own, special tokens' text included
    delta: str  # visible text that it released
    stopped: bool  # a stop sequence is complete
    behind: str = ""  # the end of the token's own text, where the stop sequence ends within it


class SequenceText:
    """Collects the visible text of a sequence; special tokens have a text but are not visible.

    Stop sequences are looked for in the visible text, by `matcher`. One that is the text of a special token
    is matched by that token, as in TGI, and by nothing else.
    """

    def __init__(
        self,
        stream: TextStream,
        stops: Sequence[str],
        token_text: Callable[[int], str],
        matcher: Stops | None = None,
    ) -> None:
        """`matcher` looks for the stops; without one, they are looked for in all of the text."""
        self._stream = stream
        self._stops = frozenset(stops)
        self._matcher = matcher or StopMatcher(stops)
        self._token_text = token_text
        self._released: list[str] = []
        self._ended_by_special = False  # a special token whose text is a stop sequence

    def push(self, token_id: int, *, special: bool, may_stop: bool = True) -> TextStep:
        """Add a token; a stop sequence that it completes counts only if it `may_stop`."""
        if special:
            text = self._token_text(token_id)
            delta = self._release(self._matcher.special(token_id))
            ends = may_stop and text in self._stops and not self._matcher.in_calls
            self._ended_by_special = ends
            return TextStep(text, delta, self.stopped)
        text = self._stream.push(token_id)
        delta = self._release(self._matcher.push(text, may_stop=may_stop))
        return TextStep(text, delta, self._matcher.matched is not None, self._matcher.behind)

    def flush(self) -> str:
        """Return the visible text that was held back; call it once, after the last token."""
        return self._release(self._matcher.push(self._stream.flush()) + self._matcher.flush())

    @property
    def stopped(self) -> bool:
        """Return whether a stop sequence is complete: after `flush`, also one that this completed."""
        return self._ended_by_special or self._matcher.matched is not None

    @property
    def text_before_stop(self) -> str:
        """Return the text released so far: all of it after `flush`, without the stop sequence."""
        return "".join(self._released)

    @property
    def text(self) -> str:
        """Return the same up to the end of the stop sequence, if one was found in the text."""
        return self.text_before_stop + (self._matcher.matched or "")

    @property
    def whole_text(self) -> str:
        """Return all of it, what the last token had behind a stop sequence, too."""
        return self.text + self._matcher.behind

    def _release(self, text: str) -> str:
        if text:
            self._released.append(text)
        return text
