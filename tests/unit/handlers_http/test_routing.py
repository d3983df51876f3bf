"""Routing: the look-up of plain paths against connexion's own routing of the same requests."""

from __future__ import annotations

import asyncio
from typing import Any

import httpx
import pytest
from starlette.types import Scope

import openapi
from handlers.account import Account
from handlers.app import create_app
from handlers.http.contract import Routing
from tests.support import make_service

PATHS = [
    *openapi.load()["paths"],
    *("/v1/models/m", "/v1/models/a/b", "/v2/models/m/infer", "/v2/models/ready/ready"),
    *("/generate/", "/Generate", "/generate%0A", "//generate", "/gener%61te", "/nowhere", "/docs"),
]
METHODS = ("GET", "HEAD", "POST", "PUT", "OPTIONS")
Outcome = tuple[str, str, int, str]


class Heard:
    """Notes how each request was routed; an `Observer`."""

    def __init__(self) -> None:
        self.all: list[Outcome] = []

    def began(self, scope: Scope, account: Account) -> None:
        """Say nothing yet."""

    def ended(self, scope: Scope, account: Account) -> None:
        """Note the operation and the status."""
        self.all.append((scope["method"], scope["path"], account.status, account.operation))


def routed(root: str = "") -> list[Outcome]:
    """Return how every method of every path is routed, below a root path."""
    heard = Heard()
    app = create_app(make_service(validate_responses=False), observers=[heard])

    async def ask() -> None:
        transport = httpx.ASGITransport(app=app, root_path=root)
        async with httpx.AsyncClient(transport=transport, base_url="http://parley.test") as client:
            for path in PATHS:
                for method in METHODS:
                    await client.request(method, root + path)

    asyncio.run(ask())
    return heard.all


@pytest.mark.parametrize("root", ["", "/below"])
def test_a_path_that_is_looked_up_goes_where_connexions_routing_leads(
    root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_up = routed(root)

    def forget(self: Any, mount: Any, route: Any) -> None:
        """Look nothing up."""

    monkeypatch.setattr(Routing, "_note_plain", forget)
    assert looked_up == routed(root)
    assert {"generate", "chat_completions", "health", ""} <= {found for *_, found in looked_up}
