"""Stop sequences: found anywhere in the visible text, however the tokens cut it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

LONG = 64  # characters of a stop sequence from which on it is followed letter by letter


class Stops(Protocol):
    """What looks for stop sequences in a text while it is generated."""

    @property
    def matched(self) -> str | None:
        """Return the stop sequence that was found."""

    @property
    def behind(self) -> str:
        """Return the text that came after it."""

    @property
    def in_calls(self) -> bool:
        """Return whether stop sequences end nothing where the text is now."""

    def push(self, text: str, *, may_stop: bool = True) -> str:
        """Take more text and return what may be shown; nothing once a stop sequence was found."""

    def special(self, token_id: int) -> str:
        """Take a special token, which has no visible text, and return what may be shown for it."""

    def flush(self) -> str:
        """Return what was held back; call it when no more text comes."""


class StopMatcher:
    """Releases text as soon as it can't be part of a stop sequence any more.

    The sequence that is complete first wins; of several that end at the same character, the
    longest. So the outcome does not depend on how the text is cut into pieces.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = tuple(stop for stop in stops if stop and len(stop) < LONG)
        self._long = tuple(LongStop(stop) for stop in stops if len(stop) >= LONG)
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
        if not self._stops and not self._long:
            return text
        seen = len(self._held)
        held = self._held + text
        ends = self._ends(held, seen) if may_stop else []
        for each in self._long:
            found = each.push(text)
            if may_stop and found is not None:
                ends.append((seen + found, seen + found - len(each.stop)))
        if ends:
            end, start = min(ends)
            self.matched, self.behind, self._held = held[start:end], held[end:], ""
            return held[:start]
        keep = max([*(overlap(held, stop) for stop in self._stops), *(each.begun for each in self._long)])
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
        for each in self._long:
            each.begun = 0
        return held

    def _ends(self, text: str, seen: int) -> list[tuple[int, int]]:
        """Return where each stop sequence first ends after `seen` characters, and where it starts then."""
        return [
            (at + len(stop), at)
            for stop in self._stops
            if (at := text.find(stop, max(0, seen + 1 - len(stop)))) >= 0
        ]


class LongStop:
    """How much of a long stop sequence a text ends with, followed in time that grows with the text alone.

    Compared anew for each token, one of 16,000 equal letters took 70 ms each time. (Knuth, Morris and
    Pratt: Fast Pattern Matching in Strings, 1977; its table is made as far as a text has come.)
    """

    def __init__(self, stop: str) -> None:
        self.stop = stop
        self.begun = 0  # characters of the longest end of the text that is a proper beginning of it
        self._borders = [0]  # of each beginning of it: the longest proper one that also ends that

    def push(self, text: str) -> int | None:
        """Take more text; return how many of its characters complete the sequence first, None if none do."""
        found = None
        stop, size = self.stop, self.begun
        for at, char in enumerate(text, 1):
            while size and stop[size] != char:
                size = self._border(size)
            size += stop[size] == char
            if size == len(stop):
                found = at if found is None else found
                size = self._border(size)
        self.begun = size
        return found

    def _border(self, size: int) -> int:
        borders, stop = self._borders, self.stop
        while len(borders) < size:
            border = borders[-1]
            while border and stop[len(borders)] != stop[border]:
                border = borders[border - 1]
            borders.append(border + (stop[len(borders)] == stop[border]))
        return borders[size - 1]


def overlap(text: str, stop: str) -> int:
    """Return the length of the longest end of `text` that is a proper beginning of `stop`."""
    at = max(0, len(text) - len(stop) + 1)
    while (at := text.find(stop[0], at)) >= 0:
        if stop.startswith(text[at:]):
            return len(text) - at
        at += 1
    return 0
