"""How many sequences are taken on at a time, and when to come back once there is no room."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Self

from inference.errors import InvalidInput, Overloaded

COMPLETIONS_REMEMBERED = 64


class Permit:
    """Room for some sequences; give it back with `release` once the response has ended."""

    def __init__(self, release: Callable[[], None]) -> None:
        self._release: Callable[[], None] | None = release

    def release(self) -> None:
        """Give the room back; further calls do nothing."""
        release, self._release = self._release, None
        if release is not None:
            release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class Admission:
    """Counts the sequences in flight and guesses from recent completions when there is room."""

    def __init__(self, limit: int, released: Callable[[], None]) -> None:
        self.limit = limit
        self._released = released  # called after room was given back
        self.in_flight = 0
        self._completions: deque[float] = deque(maxlen=COMPLETIONS_REMEMBERED)  # time.monotonic seconds

    def admit(self, sequences: int) -> Permit:
        """Return a permit for `sequences`.

        Raises Overloaded if they don't all fit now, and InvalidInput if they never do.
        """
        if sequences > self.limit:
            raise InvalidInput(
                f"{sequences} sequences at a time are more than `max_concurrent_requests`, which is "
                f"{self.limit}: send them in several requests"
            )
        if self.in_flight + sequences > self.limit:
            raise Overloaded(self.retry_after(sequences))
        self.in_flight += sequences
        return Permit(lambda: self._release(sequences))

    def retry_after(self, sequences: int) -> float:
        """Return the seconds in which `sequences` are likely to complete, between 1 and 60."""
        if not self._completions:
            return 1.0
        elapsed = time.monotonic() - self._completions[0]
        return min(60.0, max(1.0, elapsed * sequences / len(self._completions)))

    def _release(self, sequences: int) -> None:
        self.in_flight -= sequences
        self._completions.extend([time.monotonic()] * sequences)
        self._released()
