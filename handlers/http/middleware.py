"""The layers around the contract, each plain ASGI: request id, access log, header limit, CORS, errors."""

from __future__ import annotations

import logging
import random
import re
import time
from collections.abc import Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from handlers.http.errors import ClientDisconnected, Failure, settle
from handlers.http.exchange import Exchange, attach, exchange_of, operation_id
from handlers.http.support import merged

IGNORED = b"x-ignored-parameters"
SANE_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")
HEADER_LIMIT = 64 * 1024  # bytes of all request headers
EXPOSED = (
    *("x-request-id", "x-ignored-parameters", "retry-after"),
    *("x-compute-type", "x-compute-time", "x-compute-characters", "x-total-time", "x-validation-time"),
    *("x-queue-time", "x-inference-time", "x-time-per-token", "x-prompt-tokens", "x-generated-tokens"),
)

access = logging.getLogger("parley.access")


class Edge:
    """The outermost layer: gives each request its id, puts it on the response, and logs the access."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one connection's request, or its lifespan."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size, given = look_at_headers(scope)
        exchange = Exchange(given or f"{random.getrandbits(128):032x}", time.monotonic())
        attach(scope, exchange)

        async def send_marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                exchange.status = message["status"]
                _mark(message, exchange)
            await send(message)

        try:
            if size > HEADER_LIMIT:
                await TOO_MANY_HEADERS.reply()(scope, receive, send_marked)
            else:
                await self._app(scope, receive, send_marked)
        finally:
            _log(scope, exchange)


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
        except Exception as error:
            if started:
                raise
            failure = settle(error, exchange_of(scope).request_id)
            await failure.reply()(scope, receive, send)


def cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let browsers from `origins` call the application."""
    guarded = CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),  # OpenAI's client in a browser sends a dozen of its own
        expose_headers=EXPOSED,
    )
    if "*" not in origins:
        return guarded

    async def open_to_all(scope: Scope, receive: Receive, send: Send) -> None:
        browser = scope["type"] == "http" and any(name == b"origin" for name, _ in scope["headers"])
        await (guarded if browser else app)(scope, receive, send)

    return open_to_all


def look_at_headers(scope: Scope) -> tuple[int, str]:
    """Return how many bytes path and headers have, and the client's own request id if it is sane, else ""."""
    size = len(scope.get("raw_path") or b"")
    given = b""
    for name, value in scope["headers"]:
        size += len(name) + len(value)
        if name == b"x-request-id" and SANE_ID.fullmatch(value):
            given = value
    return size, given.decode("ascii")


TOO_MANY_HEADERS = Failure(431, f"The request's headers are longer than {HEADER_LIMIT} bytes", "validation")


def _mark(message: Message, exchange: Exchange) -> None:
    headers = [*message.get("headers", ()), (b"x-request-id", exchange.request_id.encode("ascii"))]
    if exchange.ignored:  # the document's rules found some, and the operation may have found others
        told = [exchange.ignored, *(value.decode("latin-1") for name, value in headers if name == IGNORED)]
        headers = [header for header in headers if header[0] != IGNORED]
        headers.append((IGNORED, merged(told).encode("ascii")))
    message["headers"] = headers


def _log(scope: Scope, exchange: Exchange) -> None:
    if not access.isEnabledFor(logging.INFO):
        return
    path = scope.get("raw_path") or scope["path"].encode()  # percent-encoded: can't forge a line of the log
    fields = {
        "status": exchange.status,
        "seconds": round(time.monotonic() - exchange.received, 6),
        "request_id": exchange.request_id,
        "operation": operation_id(scope),
    }
    access.info("%s %s", scope["method"], path.decode("latin-1"), extra=fields)
