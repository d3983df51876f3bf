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
from handlers.http.middleware import Edge, ErrorBoundary, cors
from handlers.http.server import PROBE_PATHS
from handlers.settings.table import Settings

PROBED = "health"  # the operation that all of them count as
MODELS, READY = "/v2/models/", "/ready"  # KServe's, with a model's name between them

Lifespan = Callable[[Any], AbstractAsyncContextManager[None]]


def stack(gateway: Gateway, settings: Settings, lifespan: Lifespan) -> ASGIApp:
    """Return the application."""
    routed = Router(default=gateway, redirect_slashes=False, lifespan=lifespan)
    told = (gateway.metrics, AccessLog(prompts=settings.log_prompts))
    observers = [Unrelayed(each, settings.aip_health_route) for each in told]
    return Edge(
        cors(ErrorBoundary(routed), settings.cors_allow_origin),
        observers,
        header_limit=settings.header_limit,
        max_headers=settings.max_headers,
        openai_dialect=settings.openai_dialect,
    )


class Unrelayed:
    """Has an observer hear of failures that no replica has told of; implements `Observer`.

    What asks whether the model is there by GET is a probe of its: `health_route` is one more path of them.
    """

    def __init__(self, observer: Observer, health_route: str | None) -> None:
        self._observer = observer
        self._probed = frozenset((*PROBE_PATHS, health_route))

    def began(self, scope: Scope, account: Account) -> None:
        """Wait for what it becomes."""

    def ended(self, scope: Scope, account: Account) -> None:
        """Tell of both its ends, if it was refused or has failed here."""
        if account.error_type and RELAYED not in scope["extensions"]:
            if scope["method"] in ("GET", "HEAD") and self._is_probed(scope["path"]):
                account.operation = PROBED
            self._observer.began(scope, account)
            self._observer.ended(scope, account)

    def _is_probed(self, path: str) -> bool:
        return path in self._probed or (path.startswith(MODELS) and path.endswith(READY))
