"""Signals that end a server: which they are, and how a process that serves it outlives them."""

from __future__ import annotations

import signal

# SIGHUP: a terminal that is closed, as TGI's launcher takes it
ENDINGS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


def outlive_endings() -> None:
    """Ignore what reaches all processes of a terminal or a service: the server's first one acts on it."""
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)


def end_by_hangup() -> None:
    """Take SIGHUP for SIGTERM, unless it is ignored already, as by nohup."""
    if hasattr(signal, "SIGHUP") and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda *_: signal.raise_signal(signal.SIGTERM))
