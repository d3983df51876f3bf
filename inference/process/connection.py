"""One attached API process, as the engine sees it: what comes from it, and what waits to go there."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable

from inference.ipc.framing import Payload, Unframer
from inference.ipc.messages import API_LIMIT, ENGINE_LIMIT, MIB
from inference.ipc.watchdog import LOOK_SECONDS, UNREAD_SECONDS, Patience

FULL_BYTES = 4 * MIB  # of what a process has not read; past it, nothing that is large is computed for it
OUTBOX_BYTES = ENGINE_LIMIT + 64 * MIB  # past it, it is let go however it reads: the longest frame fits
READ_BYTES = 65_536


class Connection:
    """A socket that is read by one thread and written to by any, never waiting for its reader."""

    def __init__(
        self,
        number: int,
        stream: socket.socket,
        attention: Callable[[Connection], None],
        outbox_bytes: int = OUTBOX_BYTES,
        unread_seconds: float = UNREAD_SECONDS,
    ) -> None:
        """After `unread_seconds` in which nothing was read of what waits, the reader is taken for dead."""
        self.number = number
        self.socket = stream
        self.attached = False  # its first message came
        self.wants_stats = False
        self.vocabulary: str | None = None  # digest of the tokens that its grammars are for
        self._attention = attention  # told when something waits, or too much; from any thread
        self._limit = outbox_bytes
        self._unread_seconds = unread_seconds
        self._unframer = Unframer(API_LIMIT)
        self._lock = threading.Lock()  # guards the rest
        self._outbox: deque[memoryview] = deque()
        self._waiting = 0  # bytes
        look_seconds = min(LOOK_SECONDS, unread_seconds / 4)
        self._unread = Patience(time.monotonic(), look_seconds)  # since something was read
        self._fault: str | None = None
        stream.setblocking(False)

    @property
    def fault(self) -> str | None:
        """Return why nothing more can be written, None while it can."""
        return self._fault

    @property
    def waiting(self) -> int:
        """Return how many bytes wait for the reader."""
        return self._waiting

    @property
    def full(self) -> bool:
        """Return whether so much waits that no more of what is large should come."""
        return self._waiting > FULL_BYTES

    def post(self, frame: bytes) -> None:
        """Send a frame, as much as the socket takes now; the rest waits. Never blocks."""
        with self._lock:
            if self._fault is not None:
                return
            sent = 0 if self._outbox else self._send(frame)
            if sent == len(frame):
                return
            if sent or not self._outbox:
                self._unread.begin()
            self._outbox.append(memoryview(frame)[sent:])
            self._waiting += len(frame) - sent
            if self._waiting > self._limit:
                self._fault = f"{self._waiting:,} bytes wait to be read, and the limit is {self._limit:,}"
        self._attention(self)

    def flush(self) -> None:
        """Send what waits, as much as the socket takes now."""
        with self._lock:
            while self._outbox and self._fault is None:
                part = self._outbox[0]
                sent = self._send(part)
                self._waiting -= sent
                if sent:
                    self._unread.begin()
                if sent < len(part):
                    self._outbox[0] = part[sent:]
                    return
                self._outbox.popleft()

    def look(self, now: float) -> None:
        """Take the reader for dead if it has read nothing for too long; `now` is time.monotonic() seconds."""
        with self._lock:
            seconds = self._unread.look(now)
            if self._outbox and seconds > self._unread_seconds and self._fault is None:
                self._fault = f"it has read nothing for {seconds:.0f} s of {self._waiting:,} bytes that wait"

    def read(self) -> list[Payload] | None:
        """Return the messages that have come whole by one read; None at the stream's end."""
        try:
            data = self.socket.recv(READ_BYTES)
        except BlockingIOError:
            return []
        except OSError:
            return None
        return self._unframer.feed(data) if data else None

    def give_up(self, fault: str) -> None:
        """Write nothing more; whoever looks after it next lets go of it."""
        with self._lock:
            self._fault = self._fault or fault

    def close(self) -> None:
        """Close the socket; what waits is dropped."""
        with self._lock:
            self._fault = self._fault or "closed"
            self._outbox.clear()
            self._waiting = 0
            self.socket.close()

    def _send(self, data: bytes | memoryview) -> int:
        try:
            return self.socket.send(data)
        except BlockingIOError:
            return 0
        except OSError as error:  # its end will be read
            self._fault = f"it can't be written to: {error}"
            return 0
