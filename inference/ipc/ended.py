"""What is known of a process while it runs, how it ended, and how that is said."""

from __future__ import annotations

import signal
import subprocess
import time
from dataclasses import dataclass

from inference.ipc.watchdog import Watchdog


@dataclass(frozen=True, slots=True)
class Ended:
    """How one engine went."""

    status: int | None  # of `Popen.wait`: negative for a signal; None: there was no process
    served_seconds: float | None  # since it was ready; None if it never was
    unavailable: str | None  # why it could not load the model, if it said so
    hung: str | None = None  # why it was killed, if its parent did it
    served: bool = False  # a token, as its signs of life said: what it did since the last one doesn't count


@dataclass(slots=True)
class Seen:
    """What is known of a process while it runs."""

    watchdog: Watchdog
    ready: float | None = None  # time.monotonic() seconds
    unavailable: str | None = None
    hung: str | None = None  # why it is killed
    served: bool = False  # a token

    @property
    def served_seconds(self) -> float | None:
        """Return for how long it has been ready; None if it never was."""
        return None if self.ready is None else time.monotonic() - self.ready


def describe(ended: Ended) -> str:
    """Return how a process ended, in words."""
    if ended.hung is not None:
        return f"killed, as {ended.hung}"
    if ended.unavailable is not None:
        return ended.unavailable
    assert ended.status is not None, "what never ran has said why"
    killed = -ended.status == signal.SIGKILL
    return describe_status(ended.status) + (": killed, or out of memory" if killed else "")


def describe_status(status: int) -> str:
    """Return what the exit status of a process, negative for a signal, says in words."""
    if status >= 0:
        return f"exit code {status}"
    try:
        return signal.Signals(-status).name
    except ValueError:  # a real-time one
        return f"signal {-status}"


def ends_within(process: subprocess.Popen[bytes], seconds: float) -> bool:
    """Wait for the end of a process; return whether it came in so many seconds."""
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True
