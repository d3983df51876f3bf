"""What a process writes besides its log: warnings of native code, a crash's last words."""

from __future__ import annotations

import logging
import os

LOG = logging.getLogger(__name__)

READ_BYTES = 65_536
LINE_BYTES = 65_536  # of a line without an end, from which on it counts as one


class LineReader:
    """Passes the lines from a pipe on to the log."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self._rest = b""
        os.set_blocking(descriptor, False)

    def relay(self) -> bool:
        """Log what there is to read now; return false once nothing more can come."""
        while True:
            try:
                data = os.read(self.descriptor, READ_BYTES)
            except BlockingIOError:
                return True
            if not data:
                self._log([self._rest])
                self._rest = b""
                return False
            *lines, self._rest = (self._rest + data).split(b"\n")
            if len(self._rest) > LINE_BYTES:
                lines, self._rest = [*lines, self._rest], b""
            self._log(lines)

    def _log(self, lines: list[bytes]) -> None:
        for line in lines:
            text = line.decode(errors="replace").rstrip()
            if text:
                LOG.warning("%s", text)
