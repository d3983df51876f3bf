"""Replicas in this process, without Ray, which can be lost and can decline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx
from starlette.responses import JSONResponse, StreamingResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from handlers.fleet.call import Accepted, Answer, Call, Piece, Route
from handlers.fleet.gateway import Gateway
from handlers.fleet.stack import stack
from handlers.http.sse import CUT
from handlers.settings.table import Settings
from tests.support import serving

GENERATE = {"inputs": "hello", "parameters": {"max_new_tokens": 5}}
CHAT = {"model": "x", "messages": [{"role": "user", "content": "hello"}], "max_tokens": 5, "seed": 1}


class Lost(Exception):
    """What Ray would raise."""


@dataclass
class LocalFleet:
    """Implements `Fleet`: asks the first of its applications that isn't to be avoided."""

    apps: Mapping[str, ASGIApp]
    lost: dict[str, int] = field(default_factory=dict)  # after how many pieces; -1: before it has accepted
    silent: tuple[str, ...] = ()  # who never accept
    populated: bool = True
    exposition: bytes = b""
    asked: list[tuple[str, Sequence[bytes]]] = field(default_factory=list)
    calls: list[Call] = field(default_factory=list)

    def ask(self, head: dict[str, Any], body: bytes, route: Route) -> Answer:
        name = next((name for name in self.apps if name not in route.avoid), next(iter(self.apps)))
        route.chosen, route.last = name, all(each in route.avoid or each == name for each in self.apps)
        self.asked.append((name, route.beginnings))
        call = Call(self.apps[name], head, body, declinable=route.declinable)
        self.calls.append(call)
        return LocalAnswer(name, call, self.lost.get(name), name in self.silent)

    async def metrics(self) -> dict[str, bytes]:
        return dict.fromkeys(self.apps, self.exposition)


class LocalAnswer:
    """Implements `Answer`."""

    def __init__(self, name: str, call: Call, lost: int | None, silent: bool) -> None:
        self._name, self._call, self._lost, self._silent = name, call, lost, silent

    async def __aiter__(self) -> AsyncIterator[Accepted | Piece]:
        if self._silent:
            await asyncio.Event().wait()
        if self._lost == -1:
            raise Lost(self._name)
        yield Accepted(self._name)
        task = asyncio.create_task(self._call.run())
        sent = 0
        async for piece in self._call.pieces():
            if sent == self._lost:
                raise Lost(self._name)
            yield piece
            sent += 1
        await task

    def cancel(self) -> None:
        self._call.gone.set()


@asynccontextmanager
async def nothing(application: object) -> AsyncIterator[None]:
    yield


def in_front(fleet: LocalFleet | None, **changes: Any) -> tuple[Gateway, ASGIApp]:
    settings = Settings(**changes)
    gateway = Gateway(settings, fleet)
    return gateway, stack(gateway, settings, nothing)


def heard(app: ASGIApp) -> tuple[ASGIApp, asyncio.Event]:
    """Return an application, with what is set once it has answered something."""
    begun = asyncio.Event()

    async def listened_to(scope: Scope, receive: Receive, send: Send) -> None:
        async def tell(message: Message) -> None:
            await send(message)
            if message.get("body"):
                begun.set()

        await app(scope, receive, tell)

    return listened_to, begun


@asynccontextmanager
async def client_of(fleet: LocalFleet | None, **changes: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with serving(in_front(fleet, **changes)[1]) as client:
        yield client


def says(status: int, error_type: str) -> ASGIApp:
    return JSONResponse({"error": "no", "error_type": error_type}, status)


def answers(text: str = "ok") -> ASGIApp:
    return JSONResponse({"generated_text": text})


def streams(*parts: bytes, wait: asyncio.Event | None = None) -> ASGIApp:
    async def events() -> AsyncIterator[bytes]:
        for part in parts:
            yield part
            await asyncio.sleep(0.01)
        if wait is not None:
            await wait.wait()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await StreamingResponse(events(), media_type="text/event-stream")(scope, receive, send)

    return app


class Connection:
    """A client whose reading can be held up, and who can leave."""

    def __init__(self) -> None:
        self.left, self.begun, self.reads = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self.reads.set()
        self.body = b""
        self._request = iter([{"type": "http.request", "body": b"{}", "more_body": False}])
        self.cuts: list[str] = []

    async def receive(self) -> Message:
        for message in self._request:
            return message
        await self.left.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.body":
            self.body += message["body"]
            self.begun.set()
            await self.reads.wait()

    @property
    def scope(self) -> Scope:
        return {
            **{"type": "http", "http_version": "1.1", "method": "POST", "scheme": "http", "root_path": ""},
            **{"path": "/generate_stream", "raw_path": b"/generate_stream", "query_string": b""},
            "extensions": {CUT: lambda: self.cuts.append("cut")},
            "headers": [(b"content-type", b"application/json")],
        }
