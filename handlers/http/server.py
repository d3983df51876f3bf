"""The HTTP server that the application runs in: uvicorn, on uvloop and httptools where they are installed."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from collections.abc import Awaitable, Callable
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from handlers.settings import Settings
from handlers.settings_table import SettingsError

IDLE_CONNECTION_SECONDS = 75  # longer than the 60 s after which load balancers stop reusing a connection
BACKLOG = 2048
FAREWELL_SECONDS = 1  # after the draining, for what ended requests have to say

Drain = Callable[[], Awaitable[None]]


def server_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """Return uvicorn's configuration; the port is bound at once, before the model is loaded."""
    return uvicorn.Config(
        app,
        host=settings.hostname,
        port=settings.port,
        loop="uvloop" if importlib.util.find_spec("uvloop") else "asyncio",
        http=_protocol(),
        ws="none",
        lifespan="on",  # "auto" would hide errors of the start-up
        interface="asgi3",
        log_config=None,  # the process has configured logging already
        access_log=False,  # `parley.access` has its own, with request ids
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_CONNECTION_SECONDS,
        timeout_graceful_shutdown=settings.graceful_termination_timeout + FAREWELL_SECONDS,
    )


def _protocol() -> type[asyncio.Protocol] | Literal["h11"]:
    if importlib.util.find_spec("httptools") is None:
        return "h11"  # which limits the head by itself
    from handlers.http.protocol import BoundedHeadProtocol

    return BoundedHeadProtocol


class Server(uvicorn.Server):
    """uvicorn's server, which ends what it serves in order.

    uvicorn shuts the application down after it has waited for the connections, and by then cancelled their
    tasks. Whatever runs for too long would be cut off without a word.
    """

    def __init__(self, config: uvicorn.Config, drain: Drain) -> None:
        super().__init__(config)
        self._drain = drain

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Take no more connections, and have what runs end or fail while there is time to say so."""
        draining = asyncio.ensure_future(self._drain())
        try:
            await super().shutdown(sockets)
        finally:
            draining.cancel()


def run(app: ASGIApp, settings: Settings, listening: socket.socket, drain: Drain) -> None:
    """Serve what comes to a socket until SIGINT or SIGTERM, then `drain`, and let running requests end.

    uvicorn by itself listens only after the lifespan has begun, so that a model that loads in no time would
    be `Connected` before.
    """
    Server(server_config(app, settings), drain).run(sockets=[listening])


def listen(hostname: str, port: int) -> socket.socket:
    """Return a socket that listens; raises SettingsError if it can't be had."""
    family = socket.AF_INET6 if ":" in hostname else socket.AF_INET
    try:
        return socket.create_server((hostname, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0].lower()  # the rest repeats the address
        raise SettingsError(f"`port` {port} can't be bound on {hostname}: {reason}") from error
