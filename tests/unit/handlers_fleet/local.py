"""Replicas in this process, without Ray, which can be lost and can decline."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.types import ASGIApp

from handlers.fleet.call import Accepted, Answer, Call, Piece, Route


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
        route.chosen = name
        self.asked.append((name, route.beginnings))
        call = Call(self.apps[name], head, body)
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
