"""A stream to the engine's socket."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections import deque

from inference.errors import ModelUnavailable

LOG = logging.getLogger(__name__)

READ_BYTES = 65_536
GONE = "The engine's process is gone, and nobody starts it again: restart the server"


def connected(address: str, hello: bytes, *, waits: bool) -> socket.socket | None:
    """Return a stream on which `hello` was sent, which waits or doesn't; None if it can't be had now.

    It may be had later, where descriptors are short, say, or more processes wait there than the socket
    takes. Raises ModelUnavailable if nobody will ever listen there.
    """
    try:
        return _greeting(address, hello, waits)
    except (ConnectionRefusedError, FileNotFoundError, PermissionError) as error:
        raise ModelUnavailable(GONE) from error
    except OSError as error:
        LOG.warning("The engine's socket can't be connected to, which is tried again: %s", error)
        return None


def received(stream: socket.socket) -> bytes:
    """Return what has come, after waiting for it; nothing at the stream's end."""
    try:
        return stream.recv(READ_BYTES)
    except OSError:
        return b""


def shut(stream: socket.socket) -> None:
    """End a stream for whoever reads it, here too."""
    try:
        stream.shutdown(socket.SHUT_RDWR)
    except OSError:
        LOG.debug("the engine's socket was not connected any more")


class Outbox:
    """What goes to the engine: written at once, and what a full socket doesn't take waits. For one thread."""

    def __init__(self) -> None:
        self._waiting: deque[memoryview] = deque()

    def clear(self) -> None:
        """Forget what waits."""
        self._waiting.clear()

    def post(self, frame: bytes, stream: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        """Send a frame, now or as soon as there is room."""
        sent = 0 if self._waiting else _send(stream, frame)
        if sent == len(frame):
            return
        if not self._waiting:
            loop.add_writer(stream, self._flush, stream, loop)
        self._waiting.append(memoryview(frame)[sent:])

    def _flush(self, stream: socket.socket, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            sent = _send(stream, self._waiting[0])
            if sent < len(self._waiting[0]):
                self._waiting[0] = self._waiting[0][sent:]
                return
            self._waiting.popleft()
        loop.remove_writer(stream)


def _send(stream: socket.socket, data: bytes | memoryview) -> int:
    try:
        return stream.send(data)
    except BlockingIOError:
        return 0
    except OSError:  # its end is about to be read
        return len(data)


def _greeting(address: str, hello: bytes, waits: bool) -> socket.socket:
    stream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        stream.setblocking(waits)
        stream.connect(address)
        stream.sendall(hello)
    except OSError:
        stream.close()
        raise
    return stream
