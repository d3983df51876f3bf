"""The ids of a text that several sequences of one request begin with: computed once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

Encode = Callable[[], Awaitable[list[int]]]


class Encodings:
    """Ids of texts that are being encoded, and of the last one; for one event loop.

    Texts are told apart by being the same object, as those of `n` choices are: what somebody else has sent is
    never found, so that no time to an answer tells that it was sent before.
    """

    def __init__(self) -> None:
        self._turns: dict[tuple[int, bool], tuple[str, asyncio.Lock, int]] = {}  # by id: who waits for a text
        self._last: tuple[str, bool, list[int]] | None = None

    async def get(self, text: str, special: bool, encode: Encode) -> list[int]:
        """Return what `encode` gives for a text; who asks while it is at work gets the same.

        If that one is cancelled, or fails, the next one encodes.
        """
        key = id(text), special
        _, turn, waiting = self._turns.get(key, (text, asyncio.Lock(), 0))
        self._turns[key] = text, turn, waiting + 1
        try:
            async with turn:
                if self._last is None or self._last[0] is not text or self._last[1] is not special:
                    self._last = text, special, await encode()
                return self._last[2]
        finally:
            self._leave(key)

    def _leave(self, key: tuple[int, bool]) -> None:
        text, turn, waiting = self._turns[key]
        if waiting > 1:
            self._turns[key] = text, turn, waiting - 1
        else:
            del self._turns[key]
