"""What the handlers' tests share: a service on the engine that needs no model."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import pytest

from handlers.http.call import Call
from handlers.metrics.metrics import Metrics
from handlers.service import Service
from handlers.settings.table import Settings
from inference.fakes.core import fake_client
from inference.frontend.client import EngineClient

Start = Callable[..., Awaitable[Service]]


@pytest.fixture
def anyio_backend() -> str:
    """Run tests that are marked `anyio` on asyncio alone, which is what the server runs on."""
    return "asyncio"


class CountingMetrics(Metrics):
    """The metrics, with a list of what they were told."""

    def __init__(self) -> None:
        super().__init__()
        self.told: list[str] = []

    def count_request(self) -> None:
        super().count_request()
        self.told.append("request")

    def failure(self, err: str) -> None:
        super().failure(err)
        self.told.append(err)

    def finished(self, finish: Any, request: Any) -> None:
        super().finished(finish, request)
        self.told.append("finished")


@pytest.fixture
async def start() -> AsyncIterator[Start]:
    """Return a function that starts a service: settings by name; `fake` goes to `fake_client`."""
    engines: list[EngineClient] = []

    async def make(*, fake: dict[str, Any] | None = None, **settings: Any) -> Service:
        chosen = Settings(**settings)
        engine = fake_client(chosen.engine_config(), **fake or {})
        engines.append(engine)
        await engine.start(lambda line: None)
        metrics = CountingMetrics()
        metrics.bind(engine.model)
        return Service(chosen, engine, metrics)

    yield make
    for engine in engines:
        await engine.close()


def make_call(body: Any = None, **path: str) -> Call[Any]:
    return Call(body=body, path=path, received=time.monotonic())


@pytest.fixture
def call() -> Callable[..., Call[Any]]:
    return make_call
