"""uvicorn's httptools protocol, with what it lacks: a limit on a head, and the body of an offered upgrade."""

from __future__ import annotations

from typing import Any

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT = 256 * 1024  # bytes; what is longer than HEADER_LIMIT, but not endless, gets a proper 431
FRAMING = (b"content-length", b"transfer-encoding")


class Parser(httptools.HttpRequestParser):
    """httptools' parser, which ends a request after the head if it has `Upgrade`, told to go on.

    Nothing is upgraded to here, so that the request is one like any other (RFC 9110, 7.8). Java's
    HttpClient offers HTTP/2 in this way with the body of its first request.
    """

    def __init__(self, protocol: BoundedHeadProtocol) -> None:
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


class BoundedHeadProtocol(HttpToolsProtocol):
    """Closes a connection whose request line and headers don't come to an end; uvicorn answers 400."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.parser = Parser(self)
        self._head_open = True
        self._head_bytes = 0
        self._repeating = False  # the parser reads a head that was told already

    def data_received(self, data: bytes) -> None:
        """Take bytes from the socket."""
        super().data_received(data)
        if self._head_open:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT and not self.transport.is_closing():
                self.send_400_response("Request headers too large.")

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
        self._head_open = True
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
        self._head_open = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note that the request has ended; with `Upgrade`, httptools says so before the body."""
        if not self.parser.should_upgrade():
            super().on_message_complete()
