"""Stop sequences: found anywhere in the visible text, however the tokens cut it."""

from __future__ import annotations

from collections.abc import Sequence


class StopMatcher:
    """Releases text as soon as it can't be part of a stop sequence any more.

    The sequence that is complete first wins; of several that end at the same character, the
    longest. So the outcome does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop)
        self._held = ""  # a suffix of the text that may begin a stop sequence
        self.matched: str | None = None  # the stop sequence that was found
        self.behind = ""  # the text that came after it

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Take more text and return what may be shown; nothing once a stop sequence was found.

        One that is complete within a text that may not stop is text like any other; one that only
        begins there is found when it is completed.
        """
        if self.matched is not None:
            self.behind += text
            return ""
        if not self._stops:
            return text
        seen = len(self._held)
        held = self._held + text
        if may_stop and (found := self._find(held, seen)) is not None:
            start, end = found
            self.matched, self.behind, self._held = held[start:end], held[end:], ""
            return held[:start]
        keep = max(overlap(held, stop) for stop in self._stops)
        release = len(held) - keep
        self._held = held[release:]
        return held[:release]

    @property
    def in_calls(self) -> bool:
        """Return whether stop sequences end nothing any more; those of a text alone always do."""
        return False

    def special(self, token_id: int) -> str:
        """Take a special token, which has no visible text, and return what may be shown for it."""
        return ""

    def flush(self) -> str:
        """Return what was held back; call it when no more text comes."""
        held, self._held = self._held, ""
        return held

    def _find(self, text: str, seen: int) -> tuple[int, int] | None:
        """Return where the first stop sequence that ends after `seen` characters starts and ends."""
        ends = [
            (at + len(stop), at)
            for stop in self._stops
            if (at := text.find(stop, max(0, seen + 1 - len(stop)))) >= 0
        ]
        if not ends:
            return None
        end, start = min(ends)
        return start, end


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a proper beginning of `stop`."""
    at = max(0, len(text) - len(stop) + 1)
    while (at := text.find(stop[0], at)) >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at += 1
    return 0
