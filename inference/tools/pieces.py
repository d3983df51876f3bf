"""An answer's text and special tokens, in the order in which they were generated."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import TypeAlias

from inference.types import Event

Piece: TypeAlias = str | int  # visible text, or the id of a special token


class Pieces:
    """Puts an answer's special tokens where they stand in its text.

    Text may be released after them: a part of a character, and what may begin a stop sequence, is held back.
    """

    def __init__(self) -> None:
        self._generated = 0  # characters of text that the tokens stand for
        self._released = 0  # of these read: fewer where the last ones may begin a stop sequence
        self._specials: deque[tuple[int, int]] = deque()  # (place, id) of special tokens behind text to come

    def of(self, event: Event) -> Iterator[Piece]:
        """Yield what an event adds."""
        text = event.delta
        while self._specials and self._specials[0][0] <= self._released + len(text):
            place, token_id = self._specials.popleft()
            size = place - self._released
            yield text[:size]
            yield token_id
            text, self._released = text[size:], place
        yield text
        self._released += len(text)
        if not event.token.special:
            self._generated += len(event.token.text)
        elif self._released < self._generated:
            self._specials.append((self._generated, event.token.id))
        else:
            yield event.token.id

    def rest(self) -> Iterator[Piece]:
        """Yield the special tokens whose place didn't come; use it once, at the end."""
        while self._specials:
            yield self._specials.popleft()[1]
