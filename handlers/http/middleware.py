"""The layers around the contract, each plain ASGI: request id, account, header limit, errors."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from handlers.account import DECLINABLE, RECEIVED, Observer, open_account
from handlers.http.errors import ENDING, ClientDisconnected, Failure, describe, settle
from handlers.http.exchange import Exchange, attach, exchange_of, operation_id
from handlers.http.message_errors import speaks_messages
from handlers.http.sender import AUTO, set_dialect
from handlers.http.sse import CUT
from handlers.http.support import merged

IGNORED = b"x-ignored-parameters"
TOO_LATE = "Task cancelled, timeout graceful shutdown exceeded"  # uvicorn's word to what hasn't ended then
SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")

logger = logging.getLogger("parley.connections")


class Edge:
    """The outermost layer: gives each request its id, puts it on the response, and keeps its account."""

    def __init__(
        self,
        app: ASGIApp,
        observers: Sequence[Observer] = (),
        *,
        header_limit: int = 65_536,
        max_headers: int = 128,
        openai_dialect: str = AUTO,
    ) -> None:
        """`observers` are told of each request, in this order, and of its end in the opposite one.

        A request whose path and headers have more than `header_limit` bytes, or which has more than
        `max_headers`, is refused. `openai_dialect` says whose clients are OpenAI's.
        """
        self._app = app
        self._began = [observer.began for observer in observers]
        self._ended = [observer.ended for observer in reversed(observers)]
        self._header_limit = header_limit
        self._max_headers = max_headers
        self._dialect = openai_dialect

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request, or its lifespan."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size, given = look_at_headers(scope)
        exchange = Exchange(given or f"{random.getrandbits(128):032x}", time.monotonic())
        bodiless = scope["method"] == "HEAD"  # the protocol sends nothing of what is given to it
        attach(scope, exchange)
        set_dialect(scope, self._dialect)
        exchange.declinable = scope["extensions"].get(DECLINABLE, False)
        exchange.received_bytes = scope["extensions"].get(RECEIVED, 0)
        open_account(exchange)
        for began in self._began:
            began(scope, exchange)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                exchange.decide()
                _mark(message, exchange, scope["path"])
            elif not bodiless:
                exchange.sent_bytes += len(message.get("body", b""))
            await send(message)

        try:
            if size > self._header_limit or len(scope["headers"]) > self._max_headers:
                refusal = self._refusal(size, len(scope["headers"]), exchange.request_id)
                exchange.error_type, exchange.error = refusal.error_type, refusal.error
                await refusal.reply(scope)(scope, receive, send_marked)
            else:
                await self._app(scope, receive, send_marked)
        finally:
            exchange.decide()
            exchange.operation = operation_id(scope)
            for ended in self._ended:
                ended(scope, exchange)

    def _refusal(self, size: int, count: int, request_id: str) -> Failure:
        limit, given = f"path and headers must be at most {self._header_limit} bytes", f"{size} bytes"
        name = "header_limit"
        if count > self._max_headers:
            name, limit, given = "max_headers", f"headers must be at most {self._max_headers}", f"{count}"
        message = f"The request's {limit} (`{name}`). Given: {given}. Send fewer"
        return Failure(431, message, "validation", request_id=request_id)


class ErrorBoundary:
    """Answers whatever is raised before the response has begun; after that, the connection is cut."""

    BUILD = "parley.build"  # the kind of scope that ends here

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            if scope["type"] != self.BUILD:
                await self._app(scope, receive, send)
            return
        started = False

        async def send_noting(message: Message) -> None:
            nonlocal started
            started = True
            await send(message)

        try:
            await self._app(scope, receive, send_noting)
        except ClientDisconnected:
            exchange_of(scope).status = 499
        except asyncio.CancelledError as error:
            if error.args != (TOO_LATE,):
                raise
            await _end(scope, receive, send, started=started)
        except Exception as error:
            exchange = exchange_of(scope)
            if started:
                exchange.error_type = describe(error, exchange.request_id).error_type
                raise
            failure = settle(error, exchange.request_id, names=exchange.names, body=exchange.body)
            exchange.error_type, exchange.error = failure.error_type, failure.error
            await failure.reply(scope)(scope, receive, send)


async def _end(scope: Scope, receive: Receive, send: Send, *, started: bool) -> None:
    """End what the server can't wait for any longer, in place of a traceback: it is no fault."""
    exchange = exchange_of(scope)
    logger.warning("request %s was cut off: the server ends", exchange.request_id)
    exchange.error_type, exchange.error = ENDING.error_type, ENDING.error
    if not started:
        await replace(ENDING, request_id=exchange.request_id).reply(scope)(scope, receive, send)
        return
    cut: Callable[[], object] | None = scope["extensions"].get(CUT)
    if cut is not None:
        cut()


def look_at_headers(scope: Scope) -> tuple[int, str]:
    """Return how many bytes path and headers have, and the client's own request id if it is sane, else ""."""
    size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
    given = b""
    for name, value in scope["headers"]:
        size += len(name) + len(value)
        if name == b"x-request-id" and SANE_ID.fullmatch(value):
            given = value
    return size, given.decode("ascii")


def _mark(message: Message, exchange: Exchange, path: str) -> None:
    id = exchange.request_id.encode("ascii")
    headers = [*message.get("headers", ()), (b"x-request-id", id)]
    if speaks_messages(path):
        headers.append((b"request-id", id))
    # the document's rules found some, and the operation may have found others; an error honours nothing
    if exchange.ignored and message["status"] < 400:
        told = [exchange.ignored, *(value.decode("latin-1") for name, value in headers if name == IGNORED)]
        headers = [header for header in headers if header[0] != IGNORED]
        headers.append((IGNORED, merged(told).encode("ascii")))
    message["headers"] = headers
