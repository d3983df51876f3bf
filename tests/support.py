"""Servers for tests: the application in this process, or behind a real socket."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

import httpx
import uvicorn
from starlette.responses import Response
from starlette.types import ASGIApp, Message

from codegen.document import Document
from codegen.property_contract import whole_errors
from handlers.app import create_app
from handlers.http.call import Operation
from handlers.http.responses import ContractViolation
from handlers.http.server import server_config
from handlers.metrics.metrics import Metrics
from handlers.routes.operations import OPERATIONS
from handlers.service import Service
from handlers.settings.table import Settings
from inference.fakes.core import fake_client
from inference.frontend.client import EngineClient
from inference.types import EngineState

PATIENCE = 20.0  # seconds until a server that doesn't start is given up
ANSWER_SECONDS = 60.0  # that a server of a busy machine may take for an answer


@dataclass(frozen=True, slots=True)
class LiveServer:
    """A server behind a socket of this machine; its responses are held against the contract."""

    base_url: str
    host: str
    port: int
    service: Service
    violations: list[ContractViolation] = field(default_factory=list)

    def client(self, **how: Any) -> httpx.Client:
        """Return a client of it that waits for its answers; `how` as httpx takes it."""
        return httpx.Client(base_url=self.base_url, timeout=ANSWER_SECONDS, **how)

    def get(self, path: str) -> httpx.Response:
        """Ask over a connection of its own."""
        with self.client() as client:
            return client.get(path)

    def post(self, path: str, body: Any, **how: Any) -> httpx.Response:
        """Send JSON over a connection of its own; `how` as httpx takes it."""
        with self.client() as client:
            return client.post(path, json=body, **how)


def make_service(
    settings: Settings | None = None, engine: EngineClient | None = None, **changes: Any
) -> Service:
    """Return a service, on a fake engine unless one is given; `changes` are settings."""
    settings = replace(settings or Settings(validate_responses=True), **changes)
    return Service(settings, engine or fake_client(settings.engine_config()), Metrics())


@contextlib.contextmanager
def live_server(
    service: Service | None = None,
    *,
    operations: Mapping[str, Operation[Any, Response]] = OPERATIONS,
    wait: bool = True,
    **changes: Any,
) -> Iterator[LiveServer]:
    """Serve on a free port of 127.0.0.1 from a thread of its own, until the block ends.

    Fails at its end if a response broke the contract. `wait` is for the engine; `changes` are settings of
    the service that is made if none is given.
    """
    assert service is None or not changes, "the service has its settings already"
    service = service or make_service(hostname="127.0.0.1", **changes)
    violations: list[ContractViolation] = []
    app = create_app(service, operations=operations, report=violations.append)
    config = server_config(app, service.settings)
    config.host, config.port = "127.0.0.1", 0
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, name="live-server", daemon=True)
    thread.start()
    try:
        port = _port(server, thread)
        live = LiveServer(f"http://127.0.0.1:{port}", "127.0.0.1", port, service, violations)
        if wait:
            _wait_for_engine(service)
        yield live
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
    assert not thread.is_alive(), "the server didn't stop"
    assert violations == []


@contextlib.contextmanager
def logging_kept() -> Iterator[None]:
    """Give logging back as it was, whatever configures it meanwhile."""
    names = ("parley", "handlers", "inference", "uvicorn", "uvicorn.access", "httpx")
    handlers, level = logging.root.handlers, logging.root.level
    before = [(logging.getLogger(name), logging.getLogger(name).level) for name in names]
    yield
    logging.root.handlers = handlers
    logging.root.setLevel(level)
    logging.captureWarnings(False)
    for logger, was in before:
        logger.setLevel(was)
        logger.disabled = False


@cache
def tgis_whole() -> frozenset[tuple[str, str]]:
    """Return the errors whose bodies are TGI's to the letter: message and type."""
    return whole_errors(Document.load())


def error_of(response: httpx.Response, event: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Return what an error says; its request id has to be the header's, but in a body that is TGI's whole.

    `event` is the one of a stream.
    """
    told = dict(response.json() if event is None else event)
    whole = isinstance(told.get("error"), str) and (told["error"], told["error_type"]) in tgis_whole()
    assert told.pop("request_id", None) == (None if whole else response.headers["x-request-id"])
    return told


def message_of(answer: Mapping[str, Any]) -> str:
    """Return what an error's body says; for OpenAI's clients its `error` is an object."""
    error = answer["error"]
    return str(error if isinstance(error, str) else error["message"])


@contextlib.asynccontextmanager
async def serving(app: ASGIApp, service: Service | None = None) -> AsyncIterator[httpx.AsyncClient]:
    """Run an application in this process, its lifespan included, and give a client for it."""
    async with _lifespan(app):
        if service is not None:
            await asyncio.to_thread(_wait_for_engine, service)
        transport = httpx.ASGITransport(app=app)
        async with httpx.AsyncClient(transport=transport, base_url="http://parley.test") as client:
            yield client


@contextlib.asynccontextmanager
async def _lifespan(app: ASGIApp) -> AsyncIterator[None]:
    to_app: asyncio.Queue[Message] = asyncio.Queue()
    from_app: asyncio.Queue[Message] = asyncio.Queue()
    running = asyncio.create_task(_run(app, to_app, from_app))
    await to_app.put({"type": "lifespan.startup"})
    assert await from_app.get() == {"type": "lifespan.startup.complete"}
    try:
        yield
    finally:
        await to_app.put({"type": "lifespan.shutdown"})
        assert await from_app.get() == {"type": "lifespan.shutdown.complete"}
        await running


async def _run(app: ASGIApp, to_app: asyncio.Queue[Message], from_app: asyncio.Queue[Message]) -> None:
    await app({"type": "lifespan", "asgi": {"version": "3.0"}, "state": {}}, to_app.get, from_app.put)


def _port(server: uvicorn.Server, thread: threading.Thread) -> int:
    deadline = time.monotonic() + PATIENCE
    while not server.started:
        assert thread.is_alive(), "the server didn't start: see the log"
        assert time.monotonic() < deadline, "the server doesn't start"
        time.sleep(0.005)
    port: int = server.servers[0].sockets[0].getsockname()[1]
    return port


def _wait_for_engine(service: Service) -> None:
    deadline = time.monotonic() + PATIENCE
    while service.engine.state is EngineState.LOADING:
        assert time.monotonic() < deadline, "the engine doesn't load"
        time.sleep(0.005)
