"""Bytes on their way to somebody who may not read: whoever has some to send never waits."""

from __future__ import annotations

import os
import select
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable

PIPE_BYTES = 4096  # that a pipe takes as one: lines of several processes don't get mixed (POSIX's PIPE_BUF)
NAP_SECONDS = 0.005  # once all is written: what comes meanwhile goes together

Announce = Callable[[int], bytes]


class Outbox:
    """Writes pieces in their order, on a thread of its own; what finds no room is dropped and counted.

    A descriptor that can't be written to, as a full disk's, loses what is written then.
    """

    def __init__(self, descriptor: int, limit_bytes: int, announce: Announce) -> None:
        """`announce` makes the piece that tells how many were dropped, written once there is room again."""
        self._descriptor = descriptor
        self._limit = limit_bytes
        self._announce = announce
        self._changed = threading.Condition()  # reentrant, as a signal's handler may flush; guards the rest
        self._pieces: deque[bytes] = deque()
        self._waiting = 0  # bytes, with those that are just being written
        self._missing = 0  # pieces dropped and not announced
        self._dropped = 0
        self._tell_dropped: Callable[[int], None] | None = None
        self._thread: threading.Thread | None = None  # started by the first piece
        self._closed = False
        if hasattr(os, "register_at_fork"):
            renew = weakref.WeakMethod(self._renew)
            os.register_at_fork(after_in_child=lambda: (found := renew()) and found())

    def put(self, piece: bytes) -> None:
        """Have a piece written; it is dropped if too much waits. Never blocks."""
        with self._changed:
            if self._closed or (self._waiting and self._waiting + len(piece) > self._limit):
                self._drop(1)
                return
            self._append(piece)
            if self._thread is None:
                # A daemon: the end of a process must not wait for somebody who doesn't read
                self._thread = threading.Thread(target=self._run, name="outbox", daemon=True)
                self._thread.start()

    def flush(self, seconds: float) -> bool:
        """Wait until all has been written, but no longer than so; return whether it has."""
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, seconds)

    def close(self) -> None:
        """Take nothing more; what waits is still written."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def tell_dropped(self, tell: Callable[[int], None]) -> None:
        """Have every number of dropped pieces told, those from before at once; from any thread."""
        with self._changed:
            self._tell_dropped = tell
            if self._dropped:
                tell(self._dropped)

    def _append(self, piece: bytes) -> None:
        self._pieces.append(piece)
        self._waiting += len(piece)
        self._changed.notify_all()

    def _drop(self, count: int) -> None:
        self._missing += count
        self._dropped += count
        if self._tell_dropped is not None:
            self._tell_dropped(count)

    def _renew(self) -> None:
        """Begin anew in a forked process: the thread, and what waits, are its parent's."""
        self._changed = threading.Condition()
        self._pieces.clear()
        self._waiting = self._missing = 0
        self._thread = None

    # --- the thread -----------------------------------------------------------------------------

    def _run(self) -> None:
        while batch := self._take():
            try:
                self._write(b"".join(batch))
                failed = 0
            except OSError:  # nobody is there, or no room: there is no place to tell it
                failed = len(batch)
            self._note_written(batch, failed)
            time.sleep(0 if self._pieces or self._closed else NAP_SECONDS)

    def _take(self) -> list[bytes]:
        """Wait for something to write; return as many pieces as a pipe takes as one, or none at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._pieces or self._closed)
            batch: list[bytes] = []
            size = 0
            while self._pieces and (not batch or size + len(self._pieces[0]) <= PIPE_BYTES):
                batch.append(self._pieces.popleft())
                size += len(batch[-1])
            return batch

    def _write(self, data: bytes) -> None:
        while data:
            try:
                data = data[os.write(self._descriptor, data) :]
            except BlockingIOError:  # whoever started this process has made it one that doesn't wait
                select.select([], [self._descriptor], [])

    def _note_written(self, batch: list[bytes], failed: int) -> None:
        with self._changed:
            self._waiting -= sum(map(len, batch))
            if failed:
                self._drop(failed)
            elif self._missing and self._waiting <= self._limit // 2:
                missing, self._missing = self._missing, 0
                self._append(self._announce(missing))
            self._changed.notify_all()
