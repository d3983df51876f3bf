"""uvicorn's httptools protocol, with what it lacks: limits, strictness, bodies of offered upgrades."""

from __future__ import annotations

import asyncio
import logging
import random
from dataclasses import dataclass, replace
from enum import Enum, auto
from typing import Any

import httptools
import orjson
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

from handlers.http.answering import arrived_bytes
from handlers.http.errors import ENDING, Failure
from handlers.http.exchange import KEY, Exchange
from handlers.http.heads import LONGEST_TARGET, fault_of, long_target, origin_form, target_fault
from handlers.http.lingering import LingeringProtocol
from handlers.http.parser import Parser, Unfit, failure_of
from handlers.http.room import Room
from handlers.http.sse import CUT
from handlers.http.undelimited import end_by_closing

HEAD_LIMIT = 512 * 1024  # bytes; what is longer than `header_limit`, but not endless, gets a proper 431
GRACE_SECONDS = 2.0  # that a body may be late: the application answers by itself
FRAMING = (b"content-length", b"transfer-encoding")
MOST_PIPELINED = 64  # requests of a connection that wait for answers to those before them; then it is closed
SPARE = 16  # connections beyond their number, for probes
FULL = Failure(503, "As many connections as `max_connections` are open", "overloaded", {"retry-after": "1"})
PIPELINED = Failure(
    429,
    f"At most {MOST_PIPELINED} requests may wait on one connection for answers to those before them. "
    "Given: more: send the rest again",
    "overloaded",
    {"retry-after": "1"},
)

logger = logging.getLogger("parley.connections")

REFUSED = "request %s refused with %d: %s"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """What one connection may take, and how many there may be."""

    connections: int
    probes: frozenset[bytes]  # paths that are answered on a few connections more
    trailer_bytes: int  # after the last chunk of a body, or between two
    header_seconds: float
    body_seconds: float
    write_seconds: float  # without a byte read by the client, once more waits than the system takes


class Stage(Enum):
    """What of a request is still to come."""

    NOTHING = auto()
    HEAD = auto()
    BODY = auto()


class BoundedProtocol(LingeringProtocol):
    """Closes connections beyond their number, those that send too slowly or too much, and those not read.

    A request that comes whole, as nearly all do, starts no timer.
    """

    def __init__(self, *args: Any, bounds: Bounds, room: Room, **kwargs: Any) -> None:
        """`room` is the server's, for all of its connections."""
        super().__init__(*args, write_seconds=bounds.write_seconds, **kwargs)
        self.parser = Parser(self)
        self._bounds = bounds
        self._room = room
        self._probes_only = False
        self._stage = Stage.HEAD  # a connection is opened to send one
        self._requests = 0  # begun
        self._head_bytes = 0
        self._trailer_bytes = 0  # since the last piece of a body
        self._beyond = False  # more requests came than may wait: the last answer tells it
        self._repeating = False  # the parser reads a head that was told already
        self._timed = (0, Stage.NOTHING)  # the request and stage that the timer is for
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Take a connection, or say that there are too many."""
        super().connection_made(transport)
        beyond = len(self.connections) - self._bounds.connections
        if beyond > 0 and not self._room.make():
            if beyond > SPARE:
                self._refuse(FULL)
                return
            self._probes_only = True
        self._room.idle(self)
        self._watch()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        if self._timer is not None:
            self._timer.cancel()
        self._room.busy(self)
        super().connection_lost(exc)
        self.pipeline.clear()  # each of them refers to this, and nobody would collect them for long

    def leave(self) -> bool:
        """Close for another one; return false if an answer is still being read, or a request has arrived."""
        if self.transport.get_write_buffer_size() or arrived_bytes(self.transport):
            return False  # to close now would cut it off without a word
        if self._stage is Stage.HEAD and self._head_bytes:
            self._refuse(FULL)
        else:
            self._close()
        self.connections.discard(self)
        return True

    def shutdown(self) -> None:
        """End with the server: an answer is sent to its end, but the rest of a request isn't waited for."""
        begun = self._stage is Stage.BODY or (self._stage is Stage.HEAD and self._head_bytes > 0)
        if begun and self._refusable:
            self._refuse(ENDING)
        else:
            super().shutdown()

    def data_received(self, data: bytes) -> None:
        """Take bytes from the socket."""
        if self._beyond:
            return
        self._trailer_bytes += len(data)  # until it is known to be something else
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserError as error:
            if self.discard(b""):
                self._close()
            else:
                self._reject(failure_of(error))
        self.discard(data)
        if self._stage is Stage.HEAD:
            self._head_bytes += len(data)
        if not self.transport.is_closing():
            self._check_size()
            self._note_work()
        self._watch()

    def _check_size(self) -> None:
        if self._stage is Stage.HEAD and self._head_bytes > HEAD_LIMIT:
            self._reject(Failure(400, "Request headers too large.", "validation"))
        elif self._stage is Stage.BODY and self._trailer_bytes > self._bounds.trailer_bytes:
            error = "Request trailers or chunk extensions too large (`header_limit`)."
            self._reject(Failure(400, error, "validation"))

    def _reject(self, failure: Failure) -> None:
        """Refuse what isn't HTTP, or too much of it; in silence where another answer is awaited or begun."""
        if self._beyond:
            return
        if self._refusable:
            self._refuse(failure)
        elif self._stage is Stage.BODY or self._head_bytes > HEAD_LIMIT:
            self._close()
        else:
            self.cycle.keep_alive = False  # what follows a whole request is no matter: its answer is

    @property
    def body_awaited(self) -> bool:
        """Return whether the present request's body is still to come, in part."""
        return self._stage is Stage.BODY

    @property
    def _refusable(self) -> bool:
        """Return whether an answer that comes next is one to the request that comes in."""
        cycle: RequestResponseCycle | None = self.cycle  # None before the first request
        if self._stage is Stage.BODY:
            return not self.pipeline and cycle is not None and not cycle.response_started
        return cycle is None or cycle.response_complete

    def decline_upgrade(self) -> httptools.HttpRequestParser:
        """Return a parser that stands where the body of the present request begins, or the next request."""
        framing = [name + b": " + value for name, value in self.headers if name in FRAMING]
        head = [b"POST / HTTP/1.1", *framing, b"", b""]  # CONNECT would be an upgrade again
        self.parser = Parser(self)
        self._repeating = True
        try:
            self.parser.feed_data(b"\r\n".join(head))
        finally:
            self._repeating = False
        return self.parser

    def on_message_begin(self) -> None:
        """Note that a request begins; raises Unfit."""
        if self._repeating:
            return
        if len(self.pipeline) >= MOST_PIPELINED:
            self._beyond = True
            raise Unfit(PIPELINED)
        super().on_message_begin()
        self._unset_keepalive_if_required()  # not at bytes of any kind: line breaks before it put off nothing
        self._stage = Stage.HEAD
        self._requests += 1
        self._head_bytes = self._trailer_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a piece of the target."""
        if not self._repeating:
            super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header, but no trailer, which must not be merged with them (RFC 9110, 6.5.1)."""
        if not self._repeating and self._stage is Stage.HEAD:
            super().on_header(name, value)

    def on_headers_complete(self) -> None:
        """Note that its head has ended; raises Unfit."""
        if self._repeating:
            return
        self._require_fit()
        self.scope["extensions"] = {CUT: self._cut_off}  # type: ignore[dict-item]
        super().on_headers_complete()
        if self.parser.get_http_version() == "1.0":
            end_by_closing(self.cycle)
        self._stage = Stage.BODY
        self._trailer_bytes = 0

    def _require_fit(self) -> None:
        failure = fault_of(self.parser.get_http_version(), self.headers)
        if failure is not None:
            raise Unfit(failure)
        if len(self.url) > LONGEST_TARGET:
            raise Unfit(long_target(len(self.url), self._bounds.trailer_bytes))
        path = origin_form(self.url)
        if path is None:
            raise Unfit(target_fault(self.url))
        if self._probes_only and path.partition(b"?")[0] not in self._bounds.probes:
            raise Unfit(FULL)
        self.url = path

    def on_body(self, body: bytes) -> None:
        """Take a piece of the body."""
        self._trailer_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Note that the request has ended; with `Upgrade`, httptools says so before the body."""
        if not self.parser.should_upgrade():
            self._stage = Stage.NOTHING
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Note that a request was answered."""
        super().on_response_complete()
        if self.transport.is_closing():
            return
        if self._beyond and self.cycle.response_complete:
            self._refuse(PIPELINED)
        else:
            self._note_work()

    def _note_work(self) -> None:
        """Have the connection closed for another one while no request of it is in work."""
        cycle: RequestResponseCycle | None = self.cycle
        if cycle is None or cycle.response_complete:
            self._room.idle(self)
        else:
            self._room.busy(self)

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
        if answering and (self._stage is Stage.HEAD or self.pipeline or self.flow.read_paused):
            self._await_rest()
        elif self._stage is Stage.HEAD and self._requests and not answering:
            self._refuse(Failure(408, "The headers took longer than `header_timeout`", "timeout"))
        else:
            self._close()

    def _refuse(self, failure: Failure) -> None:
        """Answer in place of the application, and close."""
        told = replace(failure, request_id=self._request_id())
        body = orjson.dumps(told.body())
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
            "x-request-id": told.request_id,
            **told.headers,
        }
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        # not what was given: where lengths are wrong, that may be a piece of a body
        logger.info(REFUSED, told.request_id, told.status, told.error.partition(" Given:")[0])
        self.transport.write(STATUS_LINE[told.status] + lines.encode("ascii") + b"\r\n" + body)
        self._close()

    def _request_id(self) -> str:
        """Return the id that the application has given the present request, or a new one."""
        known: object = self.scope["extensions"].get(KEY) if self._stage is Stage.BODY else None
        return known.request_id if isinstance(known, Exchange) else f"{random.getrandbits(128):032x}"
