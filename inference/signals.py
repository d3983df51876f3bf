"""Signals that end a server: which they are, and how a process that serves it outlives them."""

from __future__ import annotations

import signal
from types import FrameType

# SIGHUP: a terminal that is closed, as TGI's launcher takes it
ENDINGS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def outlive_endings() -> None:
    """Ignore what reaches all processes of a terminal or a service: the server's first one acts on it."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)


def end_by_hangup() -> None:
    """Take the first SIGHUP for SIGTERM, unless it is ignored already, as by nohup.

    A second one is no haste of anybody's: a shell passes it on, and then the kernel sends it, too.
    """
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, _end)


def _end(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)
    signal.raise_signal(signal.SIGTERM)
