"""A stream to the engine's socket."""

from __future__ import annotations

import logging
import socket

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
