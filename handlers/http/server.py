"""The HTTP server that the application runs in: uvicorn, on uvloop and httptools where they are installed."""

from __future__ import annotations

import asyncio
import importlib.util
from typing import Literal

import uvicorn
from starlette.types import ASGIApp

from handlers.settings import Settings

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
    """Serve until SIGINT or SIGTERM, then let running requests end."""
    uvicorn.Server(server_config(app, settings)).run()
