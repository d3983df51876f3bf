"""What is around the gateway: the same edge as around the application, with a request's id and limits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.routing import Router
from starlette.types import ASGIApp

from handlers.fleet.gateway import Gateway
from handlers.http.middleware import Edge, ErrorBoundary
from handlers.settings import Settings

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def stack(gateway: Gateway, settings: Settings, lifespan: Lifespan) -> ASGIApp:
    """Return the application. Who is told of requests is told by the replicas."""
    routed = Router(default=gateway, redirect_slashes=False, lifespan=lifespan)
    return Edge(ErrorBoundary(routed), header_limit=settings.header_limit, max_headers=settings.max_headers)
