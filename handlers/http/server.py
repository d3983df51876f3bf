"""The HTTP server that the application runs in: uvicorn, on uvloop and httptools where they are installed."""

from __future__ import annotations

import asyncio
import importlib.util
import socket
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from handlers.settings import Settings
from handlers.settings_table import SettingsError

KEEP_ALIVE_SECONDS = 75  # longer than the 60 s after which load balancers stop reusing a connection
BACKLOG = 2048


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
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=settings.graceful_termination_timeout,
    )


def _protocol() -> type[asyncio.Protocol] | Literal["h11"]:
    if importlib.util.find_spec("httptools") is None:
        return "h11"  # which limits the head by itself
    from handlers.http.protocol import BoundedHeadProtocol

    return BoundedHeadProtocol


def run(app: ASGIApp, settings: Settings) -> None:
    """Serve until SIGINT or SIGTERM, then let running requests end; raises SettingsError without the port.

    uvicorn by itself listens only after the lifespan has begun, so that a model that loads in no time would
    be `Connected` before.
    """
    listening = listen(settings.hostname, settings.port)
    uvicorn.Server(server_config(app, settings)).run(sockets=[listening])


def listen(hostname: str, port: int) -> socket.socket:
    """Return a socket that listens; raises SettingsError if it can't be had."""
    family = socket.AF_INET6 if ":" in hostname else socket.AF_INET
    try:
        return socket.create_server((hostname, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = str(error.strerror).partition(" (while")[0].lower()  # the rest repeats the address
        raise SettingsError(f"`port` {port} can't be bound on {hostname}: {reason}") from error
