"""/metrics on a port of its own, for networks that keep scrapers away from the public one."""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from email.utils import formatdate
from http import HTTPStatus
from socket import AF_INET, AF_INET6, SHUT_RDWR, socket
from socketserver import BaseRequestHandler, ThreadingTCPServer
from typing import Any

from handlers.settings.row import SettingsError

TYPE = "text/plain; charset=utf-8"
MAX_CONNECTIONS = 16  # at once: each has a thread and a file descriptor, which the main port needs as well
MAX_HEAD = 8192  # bytes of a request line with its headers
SECONDS = 10.0  # for a connection from its first byte to its last
ROOM_SECONDS = 1.0  # for a connection that is closed for another one to be gone

logger = logging.getLogger("parley")


@contextmanager
def metrics_port(hostname: str, port: int | None, render: Callable[[], bytes]) -> Iterator[int | None]:
    """Serve what `render` returns while the context lasts; gives the port, None without one.

    It has threads of its own, so that a scrape neither waits for the event loop nor holds it up. Raises
    SettingsError if the port can't be had.
    """
    if port is None:
        yield None
        return
    server = _listen(hostname, port, render)
    thread = threading.Thread(target=server.serve_forever, name="metrics", daemon=True)
    thread.start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Server(ThreadingTCPServer):
    allow_reuse_address = True
    daemon_threads = True

    def __init__(self, hostname: str, port: int, render: Callable[[], bytes]) -> None:
        self.address_family = AF_INET6 if ":" in hostname else AF_INET
        self.render = render
        self._free = threading.BoundedSemaphore(MAX_CONNECTIONS)
        self._unspoken: dict[socket, None] = {}  # whose request hasn't come; the oldest first
        self._lock = threading.Lock()  # guards it
        super().__init__((hostname, port), _Handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection its thread, where there are enough of them that of one which hasn't asked."""
        if not self._free.acquire(blocking=False) and not self._make_room():
            self.shutdown_request(request)
            return
        with self._lock:
            self._unspoken[request] = None
        try:
            super().process_request(request, client_address)
        except RuntimeError:  # the system gives no more threads
            self.note_asked(request)
            self._free.release()
            raise

    def note_asked(self, request: socket) -> None:
        """Note that a connection's request has come, or never will."""
        with self._lock:
            self._unspoken.pop(request, None)

    def _make_room(self) -> bool:
        """Close the connection that has not asked for the longest time; return whether that helps."""
        with self._lock:
            oldest = next(iter(self._unspoken), None)
            if oldest is None:
                return False
            del self._unspoken[oldest]
            try:
                oldest.shutdown(SHUT_RDWR)  # its thread reads the end, and gives its place back
            except OSError as error:
                logger.debug("A connection of the metrics port has gone by itself: %s", error)
        return self._free.acquire(timeout=ROOM_SECONDS)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection, close it and make room for another."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.note_asked(request)
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log a line; a client that left or fell silent is no fault of the server's."""
        error = sys.exception()
        level = logging.DEBUG if isinstance(error, ConnectionError | TimeoutError) else logging.ERROR
        logger.log(level, "A connection of the metrics port has failed: %r", error)


class _Handler(BaseRequestHandler):
    """One request, its answer, and the end of the connection."""

    server: _Server
    request: socket

    def handle(self) -> None:
        """Answer /metrics, and nothing else; raises TimeoutError for who takes too long."""
        ends = time.monotonic() + SECONDS
        head = _head(self.request, ends)
        self.server.note_asked(self.request)
        if head is None:
            return
        method, status = _judged(head)
        body = self.server.render() if status == HTTPStatus.OK else f"{status.phrase}\n".encode()
        answer = _answer_head(status, len(body)) + (b"" if method == b"HEAD" else body)
        self.request.settimeout(_left(ends))
        self.request.sendall(answer)


def _head(client: socket, ends: float) -> bytes | None:
    """Return a request up to its empty line, or what is more than MAX_HEAD of it; None if it breaks off."""
    head = b""
    while b"\r\n\r\n" not in head and len(head) <= MAX_HEAD:
        client.settimeout(_left(ends))
        more = client.recv(4096)
        if not more:
            return None
        head += more
    return head


def _left(ends: float) -> float:
    """Return the seconds that are left; raises TimeoutError if there are none."""
    left = ends - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left


def _judged(head: bytes) -> tuple[bytes, HTTPStatus]:
    """Return a request's method and the status of its answer."""
    if b"\r\n\r\n" not in head:
        return b"", HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE
    words = head.partition(b"\r\n")[0].split(b" ")
    if len(words) != 3 or not words[2].startswith(b"HTTP/1."):
        return b"", HTTPStatus.BAD_REQUEST
    method, target, _ = words
    if target.partition(b"?")[0] != b"/metrics":
        return method, HTTPStatus.NOT_FOUND
    return method, HTTPStatus.OK if method in (b"GET", b"HEAD") else HTTPStatus.METHOD_NOT_ALLOWED


def _answer_head(status: HTTPStatus, length: int) -> bytes:
    lines = [
        f"HTTP/1.1 {status.value} {status.phrase}",
        f"date: {formatdate(usegmt=True)}",
        f"content-type: {TYPE}",
        f"content-length: {length}",
        "connection: close",
    ]
    if status == HTTPStatus.METHOD_NOT_ALLOWED:
        lines.append("allow: GET, HEAD")
    return "\r\n".join([*lines, "", ""]).encode()


def _listen(hostname: str, port: int, render: Callable[[], bytes]) -> _Server:
    try:
        return _Server(hostname, port, render)
    except OSError as error:
        reason = str(error.strerror).lower()
        remedy = "choose another by --prometheus-port or PROMETHEUS_PORT, or leave it out"
        raise SettingsError(
            f"`prometheus_port` {port} can't be bound on {hostname}: {reason}; {remedy}"
        ) from error
