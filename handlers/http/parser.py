"""httptools' parser, which goes on where an upgrade is offered."""

from __future__ import annotations

from typing import Any, Protocol

import httptools

from handlers.http.errors import Failure


class Unfit(Exception):
    """A head is refused: raised in a callback of the parser, which then reads no further."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.error)
        self.failure = failure


class Declining(Protocol):
    """Whoever the parser tells what it reads."""

    def decline_upgrade(self) -> httptools.HttpRequestParser:
        """Return a parser that stands where the body of the present request begins, or the next request."""


REASONS = {  # of llhttp, in words that tell more
    "Invalid method encountered": "it doesn't begin with a method, as TLS doesn't, which isn't spoken here",
    "Pause on PRI/Upgrade": "it is HTTP/2, which isn't spoken here",
    "Expected HTTP/, RTSP/ or ICE/": "behind a path without spaces HTTP/ is expected",
}


class Parser(httptools.HttpRequestParser):
    """httptools' parser, which ends a request after the head if it has `Upgrade`, told to go on.

    Nothing is upgraded to here, so that the request is one like any other (RFC 9110, 7.8). Java's
    HttpClient offers HTTP/2 in this way with the body of its first request.
    """

    def __init__(self, protocol: Declining) -> None:
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


def failure_of(error: httptools.HttpParserError) -> Failure:
    """Return how what the parser doesn't take is refused."""
    if isinstance(error.__context__, Unfit):
        return error.__context__.failure
    reason = REASONS.get(str(error), str(error))
    return Failure(400, f"Invalid HTTP request received: {reason}. Send HTTP/1.1", "validation")
