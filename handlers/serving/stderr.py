"""Standard error of the processes that serve: what is written there comes out of the log.

Native code writes to descriptor 2 whatever logging says. So that descriptor is a pipe while a server runs,
and a thread reads it. The API workers inherit it: what they write is read by whoever started them, who still
does when one of them crashes.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from inference.ipc.output import LineReader

STDERR = 2
PIPE_BYTES = 1024 * 1024  # as many as Linux gives everybody
LAST_SECONDS = 0.5  # that the end of a process waits for the last lines

LOG = logging.getLogger("stderr")


@contextmanager
def in_the_log() -> Iterator[None]:
    """Have the log tell what is written to standard error for as long as the block lasts."""
    original = _duplicate()
    if original is None:
        yield
        return
    capture = Capture(original)
    try:
        yield
    finally:
        capture.give_back()


class Capture(logging.Handler):
    """The pipe in the place of standard error, and the thread that reads it.

    It is a handler without records of its own for the sake of `logging.shutdown`, which all ends of a process
    call: that flushes this one first, as the log was configured before.
    """

    def __init__(self, original: int) -> None:
        """`original` is a duplicate of descriptor 2, which is closed in the end."""
        super().__init__()
        self._original = original
        reading, writing = os.pipe()
        _widen(writing)
        # Whoever holds the GIL while he writes would wait for a thread that waits for the GIL
        os.set_blocking(writing, False)
        self._reader = LineReader(reading, LOG)
        self._reading = threading.Lock()
        os.dup2(writing, STDERR)
        os.close(writing)
        faulthandler.enable(original)  # a crash takes what is in the pipe with it
        self._thread = threading.Thread(target=self._run, name="stderr", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Leave records to the log."""

    def flush(self) -> None:
        """Have told what was written, as far as that takes but a moment."""
        if self._reading.acquire(timeout=LAST_SECONDS):
            try:
                self._reader.relay()
            finally:
                self._reading.release()

    def give_back(self) -> None:
        """Have standard error as it was, and tell what was written until then."""
        with suppress(OSError):  # there may be no room
            sys.stderr.flush()
        os.dup2(self._original, STDERR)
        faulthandler.enable(STDERR)
        os.close(self._original)
        self.flush()
        # It ends with the last process that has inherited the pipe, and that may be later
        self._thread.join(LAST_SECONDS)
        self.close()

    def _run(self) -> None:
        poll = select.poll()
        poll.register(self._reader.descriptor, select.POLLIN)
        while self._relay():
            seconds = self._reader.look_seconds
            poll.poll(None if seconds is None else seconds * 1000)
        os.close(self._reader.descriptor)

    def _relay(self) -> bool:
        with self._reading:
            return self._reader.relay()


def _duplicate() -> int | None:
    """Return standard error by another number; None if it is closed, or a pipe can't be waited for."""
    if not hasattr(select, "poll"):  # Windows
        return None
    try:
        return os.dup(STDERR)
    except OSError:
        return None


def _widen(pipe: int) -> None:
    """Make a pipe larger, where the system lets us: what doesn't fit is lost."""
    try:
        import fcntl

        fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
    except (ImportError, AttributeError, OSError):  # not Linux, or its user has too much of it
        LOG.debug("the pipe for standard error stays as it is")
