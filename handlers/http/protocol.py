"""uvicorn's httptools protocol, with what it lacks: limits, and the body of an offered upgrade."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from enum import Enum, auto
from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from handlers.http.sse import CUT

HEAD_LIMIT = 512 * 1024  # bytes; what is longer than `header_limit`, but not endless, gets a proper 431
GRACE_SECONDS = 2.0  # that a body may be late: the application answers by itself
FRAMING = (b"content-length", b"transfer-encoding")

logger = logging.getLogger("parley.connections")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one connection may take, and how many there may be."""

    connections: int
    header_seconds: float
    body_seconds: float
    write_seconds: float  # without a byte read by the client, once more waits than the system takes


class Stage(Enum):
    """What of a request is still to come."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class Parser(httptools.HttpRequestParser):
    """httptools' parser, which ends a request after the head if it has `Upgrade`, told to go on.

    Nothing is upgraded to here, so that the request is one like any other (RFC 9110, 7.8). Java's
    HttpClient offers HTTP/2 in this way with the body of its first request.
    """

    def __init__(self, protocol: BoundedProtocol) -> None:
        super().__init__(protocol)
        self._protocol = protocol

    def feed_data(self, data: Any) -> None:
        """Parse bytes; raises HttpParserError."""
        parser: httptools.HttpRequestParser = self
        while data:  # a loop, because pipelined requests can all offer an upgrade
            try:
                httptools.HttpRequestParser.feed_data(parser, data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                data = data[upgrade.args[0] :]
            parser = self._protocol.decline_upgrade()


class BoundedProtocol(HttpToolsProtocol):
    """Closes connections beyond their number, those that send too slowly or too much, and those not read.

    A request that comes whole, as nearly all do, starts no timer.
    """

    def __init__(self, *args: Any, bounds: Bounds, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = Parser(self)
        self._bounds = bounds
        self._stage = Stage.HEAD  # a connection is opened to send one
        self._requests = 0  # begun
        self._head_bytes = 0
        self._repeating = False  # the parser reads a head that was told already
        self._timed = (0, Stage.NOTHING)  # the request and stage that the timer is for
        self._timer: asyncio.TimerHandle | None = None
        self._unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or say that there are too many."""
        super().connection_made(transport)
        if len(self.connections) > self._bounds.connections:
            self._refuse(
                b"503 Service Unavailable",
                b'{"error":"As many connections as `max_connections` are open","error_type":"overloaded"}',
                b"retry-after: 1\r\n",
            )
            return
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        for timer in (self._timer, self._unread):
            if timer is not None:
                timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take bytes from the socket."""
        super().data_received(data)
        if self._stage is Stage.HEAD:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT and not self.transport.is_closing():
                self.send_400_response("Request headers too large.")
        self._watch()

    def pause_writing(self) -> None:
        """Note that the client reads more slowly than it is written to."""
        super().pause_writing()
        if self._unread is None:
            self._unread = self.loop.call_later(self._bounds.write_seconds, self._cut)

    def resume_writing(self) -> None:
        """Note that it has read on."""
        super().resume_writing()
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None

    def decline_upgrade(self) -> httptools.HttpRequestParser:
        """Return a parser that stands where the body of the present request begins, or the next request."""
        framing = [name + b": " + value for name, value in self.headers if name in FRAMING]
        head = [self.scope["method"].encode() + b" / HTTP/1.1", *framing, b"", b""]
        self.parser = Parser(self)
        self._repeating = True
        try:
            self.parser.feed_data(b"\r\n".join(head))
        finally:
            self._repeating = False
        return self.parser

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        if self._repeating:
            return
        self._stage = Stage.HEAD
        self._requests += 1
        self._head_bytes = 0
        super().on_message_begin()

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        if not self._repeating:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header."""
        if not self._repeating:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Note that its head has ended."""
        if self._repeating:
            return
        self._stage = Stage.BODY
        self.scope["extensions"] = {CUT: self._cut_off}  # type: ignore[dict-item]
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the request has ended; with `Upgrade`, httptools says so before the body."""
        if not self.parser.should_upgrade():
            self._stage = Stage.NOTHING
            super().on_message_complete()

    def _watch(self) -> None:
        """Have a timer for what is still to come of a request; bytes that come don't put it off."""
        if self._stage is Stage.NOTHING and self._timer is None:
            return
        due = (max(1, self._requests), self._stage)
        if due == self._timed:
            return
        self._timed = due
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._stage is not Stage.NOTHING and not self.transport.is_closing():
            self._await_rest()

    def _await_rest(self) -> None:
        bounds = self._bounds
        seconds = bounds.header_seconds if self._stage is Stage.HEAD else bounds.body_seconds + GRACE_SECONDS
        self._timer = self.loop.call_later(seconds, self._give_up)

    def _give_up(self) -> None:
        """Close a connection whose request doesn't end, unless an earlier one is still answered."""
        if self.transport.is_closing():
            return
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        answering = cycle is not None and not cycle.response_complete
        if answering and (self._stage is Stage.HEAD or self.flow.read_paused):
            self._await_rest()
        elif self._stage is Stage.HEAD and self._requests and not answering:
            self._refuse(
                b"408 Request Timeout",
                b'{"error":"The headers took longer than `header_timeout`","error_type":"timeout"}',
            )
        else:
            self.transport.close()

    def _refuse(self, status: bytes, body: bytes, more: bytes = b"") -> None:
        """Answer in place of the application, and close."""
        head = b"HTTP/1.1 %s\r\ncontent-type: application/json\r\ncontent-length: %d\r\n"
        rest = b"connection: close\r\n%s\r\n%s"
        self.transport.write((head + rest) % (status, len(body), more, body))
        self.transport.close()

    def _cut(self) -> None:
        """Cut a connection whose client doesn't read: a polite end would wait for it."""
        self._unread = None
        seconds = self._bounds.write_seconds
        logger.info("A connection was cut: its client has read nothing for %g s (write_timeout)", seconds)
        self._cut_off()

    def _cut_off(self) -> None:
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is not None:
            cycle.disconnected = True  # the answer is over for whoever sends it
        self.transport.abort()
