"""Room for connections: which of them are closed for others when there are as many as there may be."""

from __future__ import annotations

from typing import Protocol


class Guest(Protocol):
    """A connection."""

    def leave(self) -> bool:
        """Close for another one; return false if an answer is still being read, or a request has arrived."""


class Room:
    """The connections of a server that have no request in work, the one that has had none the longest first.

    Those that have never spoken are among them, and those whose headers don't come whole: whoever opens
    connections and says nothing keeps nobody out. Bytes that come don't put anybody back. A request whose
    body doesn't come is in work, until `body_timeout`.
    """

    __slots__ = ("_idle",)

    def __init__(self) -> None:
        self._idle: dict[Guest, None] = {}

    def idle(self, guest: Guest) -> None:
        """Note that a connection has no request in work; the first note counts."""
        self._idle.setdefault(guest)

    def busy(self, guest: Guest) -> None:
        """Note that it has one, or is closed."""
        self._idle.pop(guest, None)

    def make(self) -> bool:
        """Close the one that has been idle the longest; return whether there was one."""
        for guest in self._idle:
            if guest.leave():
                del self._idle[guest]
                return True
        return False
