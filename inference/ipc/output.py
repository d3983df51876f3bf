"""What a process writes besides its log: warnings of native code, a crash's last words."""

from __future__ import annotations

import logging
import os
import time

from inference.ipc.panics import PANIC, Panics

LOG = logging.getLogger("stderr.engine")  # none of ours, whose level may hide what a crash says

READ_BYTES = 65_536
MOST_READS = 64  # at a time: who reads has more to look after
LINE_BYTES = 65_536  # of a line without an end, from which on it counts as one


class LineReader:
    """Passes the lines from a pipe on to a log, each as one of its records.

    A record whose line may quote what a client sent has an `outline`, which is what can be told of it: "" if
    that is nothing. Who formats records knows whether prompts were asked for.
    """

    def __init__(self, descriptor: int, log: logging.Logger = LOG) -> None:
        self.descriptor = descriptor
        self.open = True  # until nothing more can come
        self._log = log
        self._rest = b""
        self._panics = Panics()
        os.set_blocking(descriptor, False)

    @property
    def look_seconds(self) -> float | None:
        """Return how often to call `relay` even if there is nothing to read, None if that isn't needed."""
        return self._panics.look_seconds

    def relay(self) -> bool:
        """Log what there is to read now, or much of it; return false once nothing more can come."""
        for _ in range(MOST_READS):
            if not self.open:
                return False
            now = time.monotonic()
            try:
                data = os.read(self.descriptor, READ_BYTES)
            except BlockingIOError:
                # Only now is it known that nothing has come: who is late may find old bytes
                self._panics.look(now)
                return True
            self._take(data)
            self._panics.hear(data, time.monotonic())
        return self.open

    def _take(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LINE_BYTES:
            cut = _cut(self._rest)
            lines, self._rest = [*lines, self._rest[:cut]], self._rest[cut:]
        if not data:
            self.open = False
            lines, self._rest = [self._rest], b""
        for line in lines:
            self._tell(line.decode(errors="replace").rstrip())

    def _tell(self, text: str) -> None:
        if text:
            outline = self._panics.outline(text, time.monotonic())
            extra = None if outline is None else {"outline": outline}
            self._log.warning("%s", text, extra=extra)


def _cut(line: bytes) -> int:
    """Return where to cut a line that is too long: not within what tells of a panic."""
    mark = PANIC.encode()
    begun = line.find(mark[:1], len(line) - len(mark) + 1)
    return len(line) if begun < 0 else begun
