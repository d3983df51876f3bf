"""uvicorn's httptools protocol for clients that don't read what they are answered, or leave before."""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

if sys.platform == "linux":
    import fcntl
    import termios

logger = logging.getLogger("parley.connections")


class AnsweringProtocol(HttpToolsProtocol):
    """Ends the answer in work when its client leaves, and a connection whose client doesn't read."""

    def __init__(self, *args: Any, write_seconds: float, **kwargs: Any) -> None:
        """`write_seconds`: without a byte read by the client, once more waits than the system takes."""
        super().__init__(*args, **kwargs)
        self._write_seconds = write_seconds
        self._answered: RequestResponseCycle | None = None  # `cycle` is the last request's that was read
        self._unread: asyncio.TimerHandle | None = None
        self._unread_bytes = 0  # when that timer was started

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection; who answers hears that its client has left."""
        if self._unread is not None:
            self._unread.cancel()
        if self._answered is not None and not self._answered.response_complete:
            self._answered.disconnected = True
            self._answered.message_event.set()
        super().connection_lost(exc)

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than it is written to."""
        super().pause_writing()
        if self._unread is None:
            self._await_reader()

    def resume_writing(self) -> None:
        """Note that it has read on."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None
        self._note_end()

    def on_headers_complete(self) -> None:
        """Begin to answer, or wait until an earlier request is answered."""
        super().on_headers_complete()
        if len(self.pipeline) == 1:  # reading goes on, or nobody would hear that the client leaves
            self.flow.resume_reading()

    def on_response_complete(self) -> None:
        """Note that a request was answered."""
        super().on_response_complete()
        self._note_end()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection on which nothing more was asked."""
        super().timeout_keep_alive_handler()
        self._note_end()

    def shutdown(self) -> None:
        """End with the server."""
        super().shutdown()
        self._note_end()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._answered = cycle
        super()._start_asgi_task(cycle, app)

    def _close(self) -> None:
        """Close once what was written is read, for which there is a time, too."""
        self.transport.close()
        self._note_end()

    def _note_end(self) -> None:
        closing = self.transport.is_closing() and self.transport.get_write_buffer_size() > 0
        if closing and self._unread is None:
            self._await_reader()

    def _await_reader(self) -> None:
        self._unread_bytes = _unread_bytes(self.transport)
        self._unread = self.loop.call_later(self._write_seconds, self._look_at_reader)

    def _look_at_reader(self) -> None:
        """Cut a connection whose client doesn't read: a polite end would wait for it."""
        self._unread = None
        if _unread_bytes(self.transport) < self._unread_bytes:  # slowly, but it does
            self._await_reader()
            return
        seconds = self._write_seconds
        logger.info("A connection was cut: its client has read nothing for %g s (write_timeout)", seconds)
        self._cut_off()

    def _cut_off(self) -> None:
        if self._answered is not None:
            self._answered.disconnected = True  # the answer is over for whoever sends it
        self.transport.abort()


def arrived_bytes(transport: asyncio.Transport) -> int:
    """Return how much has come that the event loop hasn't told yet; 0 where the system doesn't say."""
    return _in_system(transport, termios.FIONREAD) if sys.platform == "linux" else 0


def _unread_bytes(transport: asyncio.Transport) -> int:
    """Return how much waits to be read: here, and in the system, which asks for more by the megabyte."""
    here = transport.get_write_buffer_size()
    return here + (_in_system(transport, termios.TIOCOUTQ) if sys.platform == "linux" else 0)


def _in_system(transport: asyncio.Transport, queue: int) -> int:
    """Return how many bytes are in one of the system's queues of a connection."""
    sock = transport.get_extra_info("socket")
    if sys.platform != "linux" or sock is None:
        return 0
    try:
        waiting = fcntl.ioctl(sock.fileno(), queue, bytes(4))
    except (OSError, ValueError):  # closed meanwhile: its number may be -1
        return 0
    return int.from_bytes(waiting, sys.byteorder)
