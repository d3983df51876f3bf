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
        self._heard = 0.0  # when the last one came
        self.last = 0
        self.count = 0

    def take(self, number: int) -> bool:
        """Return whether a signal is another one than that before it."""
        before, self._heard = self._heard, self._clock()
        last, self.last = self.last, number
        if number == last and self._heard - before < ECHO_SECONDS:
            return False
        self.count += 1
        return True
