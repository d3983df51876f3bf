"""A client that does what no client should, byte by byte."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support import LiveServer

PATIENCE_SECONDS = 30.0


@contextmanager
def connected(live: LiveServer, *, receive_buffer: int | None = None) -> Iterator[socket.socket]:
    """Connect; with a small `receive_buffer` (bytes), who doesn't read is noticed early."""
    with socket.socket() as sock:
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(PATIENCE_SECONDS)
        sock.connect((live.host, live.port))
        yield sock


def head(method: str, path: str, *, length: int, more: str = "") -> bytes:
    """Return the head of a request for JSON."""
    fixed = f"{method} {path} HTTP/1.1\r\nhost: parley\r\ncontent-type: application/json\r\n"
    return f"{fixed}content-length: {length}\r\n{more}\r\n".encode()


def read_to_end(sock: socket.socket) -> bytes:
    """Return all that comes until the server closes; what it says before a reset counts, too."""
    parts: list[bytes] = []
    try:
        while part := sock.recv(65536):
            parts.append(part)
    except ConnectionResetError:
        pass  # closed with bytes of ours unread
    return b"".join(parts)


def wait_until(condition: object, what: str) -> None:
    """Wait for a condition; fail with what was waited for."""
    assert callable(condition)
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)
