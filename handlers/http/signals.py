"""The signals by which a server is told to end."""

from __future__ import annotations

import time
from collections.abc import Callable

# GNU's `timeout`, and launchers that pass a signal on which their group has got, too, send each one twice
ECHO_SECONDS = 0.1


class Signals:
    """Counts the signals that were meant: one that comes twice at once is one."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._heard = (0, 0.0)  # the last one, and when it came
        self.count = 0

    def take(self, number: int) -> bool:
        """Return whether a signal is another one than that before it."""
        now = self._clock()
        last, at = self._heard
        self._heard = number, now
        if number == last and now - at < ECHO_SECONDS:
            return False
        self.count += 1
        return True
