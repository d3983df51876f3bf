"""What is around the gateway: the same edge as around the application, with a request's id and limits."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from starlette.routing import Router
from starlette.types import ASGIApp, Scope

from handlers.access_log import AccessLog
from handlers.account import Account, Observer
from handlers.fleet.gateway import RELAYED, Gateway
from handlers.fleet.paths import Paths
from handlers.http.cors import cors
from handlers.http.middleware import Edge, ErrorBoundary
from handlers.settings.table import Settings

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def stack(gateway: Gateway, settings: Settings, lifespan: Lifespan) -> ASGIApp:
    """Return the application."""
    routed = Router(default=gateway, redirect_slashes=False, lifespan=lifespan)
    told, paths = (gateway.metrics, AccessLog(prompts=settings.log_prompts)), Paths(settings)
    observers = [Unrelayed(each, paths) for each in told]
    return Edge(
        cors(ErrorBoundary(routed), settings.cors_allow_origin),
        observers,
        header_limit=settings.header_limit,
        max_headers=settings.max_headers,
        openai_dialect=settings.openai_dialect,
    )


class Unrelayed:
    """Has an observer hear of failures that no replica has told of; implements `Observer`."""

    def __init__(self, observer: Observer, paths: Paths) -> None:
        self._observer = observer
        self._paths = paths

    def began(self, scope: Scope, account: Account) -> None:
        """Wait for what it becomes."""

    def ended(self, scope: Scope, account: Account) -> None:
        """Tell of both its ends, if it was refused or has failed here."""
        if account.error_type and RELAYED not in scope["extensions"]:
            account.operation = self._paths.operation(scope)
            self._observer.began(scope, account)
            self._observer.ended(scope, account)
