"""The whole application on the fake engine, without a socket; every response is held against the contract.

Bodies by the server's own check, headers by one that stands outside of all layers, as some add theirs.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import orjson
from starlette.types import ASGIApp, Message, Receive, Scope, Send

import openapi
from codegen.examples import read_frame
from handlers.account import Observer
from handlers.app import create_app
from handlers.http.exchange import operation_id
from handlers.http.operations import operation_table
from handlers.http.responses import ContractViolation
from handlers.metrics.metrics import Metrics
from handlers.service import Service
from handlers.settings.table import Settings
from inference.fakes.core import fake_client
from inference.frontend.client import EngineClient
from inference.types import EngineState

PATIENCE_SECONDS = 30
OF_HTTP = re.compile(r"content-(length|type)|connection|vary|access-control-.*")


@dataclass(frozen=True, slots=True)
class Served:
    """A running application."""

    http: httpx.AsyncClient
    service: Service
    app: ASGIApp

    async def post(self, path: str, body: object) -> httpx.Response:
        """Post JSON."""
        return await self.http.post(path, json=body)

    def metric(self, series: str) -> float:
        """Return the value of a series, named with its labels."""
        for line in self.service.metrics.render().decode().splitlines():
            name, _, value = line.rpartition(" ")
            if name == series:
                return float(value)
        raise LookupError(f"no series {series!r}")


@asynccontextmanager
async def served(
    *,
    fake: dict[str, Any] | None = None,
    engine: EngineClient | None = None,
    ready: bool = True,
    observers: Sequence[Observer] = (),
    **settings: Any,
) -> AsyncIterator[Served]:
    """Start the application; `fake` goes to `fake_client`, the rest is settings by name.

    With an `engine` it is over that one.

    Raises AssertionError in the end if a response broke the contract.
    """
    chosen = Settings(validate_responses=True, graceful_termination_timeout=5, **settings)
    service = Service(chosen, engine or fake_client(chosen.engine_config(), **fake or {}), Metrics())
    violations: list[ContractViolation] = []
    app = create_app(service, report=violations.append, observers=observers)
    app = with_declared_headers(app, violations)
    transport = httpx.ASGITransport(app)
    async with lifespan(app), httpx.AsyncClient(transport=transport, base_url="http://parley") as http:
        if ready:
            await until_ready(service)
        yield Served(http, service, app)
    assert violations == []


def with_declared_headers(app: ASGIApp, violations: list[ContractViolation]) -> ASGIApp:
    """Return the application; `violations` get what it sends with a header that the document doesn't name."""
    table = operation_table(openapi.load())

    async def checked(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_on(message: Message) -> None:
            row = table.get(operation_id(scope)) if message["type"] == "http.response.start" else None
            if row is not None:
                declared = row.responses.get(str(message["status"]), {}).get("headers", {})
                sent = {name.decode() for name, _ in message["headers"]} - {name.lower() for name in declared}
                undeclared = sorted(name for name in sent if not OF_HTTP.fullmatch(name))
                if undeclared:
                    problem = f"{message['status']} has undeclared headers: {', '.join(undeclared)}"
                    violations.append(ContractViolation(row.id, problem))
            await send(message)

        await app(scope, receive, send_on if scope["type"] == "http" else send)

    return checked


def events_of(response: httpx.Response) -> list[Any]:
    """Return the events of a stream; `[DONE]` as that text."""
    lines = response.text.split("\n\n")
    assert lines.pop() == ""
    payloads = [read_frame(line)[1] for line in lines]
    return [payload if payload == "[DONE]" else orjson.loads(payload) for payload in payloads]


async def until_ready(service: Service) -> None:
    """Wait until the engine has loaded."""
    async with asyncio.timeout(PATIENCE_SECONDS):
        while service.engine.state is EngineState.LOADING:  # noqa: ASYNC110 - the engine has no event for it
            await asyncio.sleep(0.005)


@asynccontextmanager
async def lifespan(app: ASGIApp) -> AsyncIterator[None]:
    """Start an ASGI application, and stop it in the end."""
    incoming: asyncio.Queue[Message] = asyncio.Queue()
    outgoing: asyncio.Queue[Message] = asyncio.Queue()
    scope: Scope = {"type": "lifespan", "asgi": {"version": "3.0"}}
    task = asyncio.ensure_future(app(scope, incoming.get, outgoing.put))
    try:
        await incoming.put({"type": "lifespan.startup"})
        started = await asyncio.wait_for(outgoing.get(), PATIENCE_SECONDS)
        assert started["type"] == "lifespan.startup.complete", started
        yield
    finally:
        await incoming.put({"type": "lifespan.shutdown"})
        await asyncio.wait_for(task, PATIENCE_SECONDS)
