"""The server that the generated tests ask: the application in this process, or one that runs elsewhere.

`PARLEY_TEST_URL` names the one elsewhere, `PARLEY_TEST_KEY` its key if it has one. The name `embedded` starts
a server of the embedded model, on the real engine.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import requests
from schemathesis.core.transport import Response
from schemathesis.python import asgi
from starlette.types import ASGIApp, Receive, Scope, Send

from codegen import fuzz_server
from codegen.property_cases import MOST_EVENTS, Case
from handlers.app import create_app
from tests.adapter_files import write_adapter
from tests.contract.properties.engine import telling_engine
from tests.contract.serving import lifespan
from tests.support import PATIENCE, make_service

URL = "PARLEY_TEST_URL"
KEY = "PARLEY_TEST_KEY"
EMBEDDED = "embedded"
OUR_KEY = "s3cret-Key"
FAILING = "make the engine fail"  # a prompt with this fails after two tokens, in this process
ADAPTER = "sql-v2"  # that the examples name; in this process
PAYLOAD_LIMIT = 100_000  # bytes; in this process
IN_PROCESS = "http://testserver"


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests are sent."""

    base_url: str
    key: str | None
    app: ASGIApp | None = None  # in this process

    def headers(self) -> dict[str, str]:
        """Return the headers of a request that may pass."""
        return {} if self.key is None else {"authorization": f"Bearer {self.key}"}

    def send(self, case: Case, number: int) -> Response:
        """Send a case, numbered so that its answer can be told from others."""
        headers = {**self.headers(), "x-request-id": f"case-{number}"}
        if self.app is not None:
            return case.call(headers=headers, app=self.app)
        return case.call(base_url=self.base_url, headers=headers, session=_session())

    def request(self, method: str, path: str, **said: Any) -> requests.Response:
        """Send a request of one's own; without the key unless `said` has it."""
        if self.app is None:
            return _session().request(method, self.base_url + path, **said)
        app: Any = self.app  # the same by another name of its messages' type
        with asgi.get_client(app, max_stream_events=MOST_EVENTS) as client:
            return client.request(method, IN_PROCESS + path, **said)


class Kept:
    """An application that goes on when its lifespan is ended, as schemathesis ends it after each test."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._life = AsyncExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None  # once it has started

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass requests on; start the application's own lifespan once."""
        if scope["type"] != "lifespan":
            await self._app(scope, receive, send)
            return
        await receive()
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
            await self._life.enter_async_context(lifespan(self._app))
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    def close(self) -> None:
        """End the application's lifespan."""
        if self._loop is not None:
            asyncio.run_coroutine_threadsafe(self._life.aclose(), self._loop).result(PATIENCE)


def wait_until_ready(target: Target) -> None:
    """Wait until the model is loaded."""
    deadline = time.monotonic() + PATIENCE
    while target.request("GET", "/health").status_code != 200:
        assert time.monotonic() < deadline, "the model isn't loaded: see the server's log"
        time.sleep(0.01)


def in_process(app: ASGIApp) -> Target:
    """Return an application as a target, when it is ready; it ends with the test that asks it first."""
    target = Target(IN_PROCESS, OUR_KEY, app)
    wait_until_ready(target)
    return target


def application(**changes: Any) -> ASGIApp:
    """Return the application on a fake engine, with a key; `changes` are settings."""
    told = {
        "validate_responses": False,
        "enable_prefill_logprobs": True,
        "image_fetching": "off",  # cases may name any host
        "reasoning_format": "raw",  # a required call may have a thought before it, be it one without end
        **changes,
    }
    service = make_service(api_key=OUR_KEY, payload_limit=PAYLOAD_LIMIT, **told)
    engine = telling_engine(service.settings.engine_config(), FAILING, 2)
    return create_app(make_service(service.settings, engine))


@contextmanager
def configured() -> Iterator[Target]:
    """Give the server that the environment names, else one in this process."""
    named = os.environ.get(URL)
    if named == EMBEDDED:
        with fuzz_server.server() as url:
            yield Target(url, fuzz_server.KEY)
        return
    if named:
        target = Target(named.rstrip("/"), os.environ.get(KEY))
        wait_until_ready(target)
        yield target
        return
    with tempfile.TemporaryDirectory() as directory:
        write_adapter(Path(directory) / ADAPTER)
        app = Kept(application(lora_directory=directory))
        try:
            yield in_process(app)
        finally:
            app.close()


@cache
def _session() -> requests.Session:
    return requests.Session()
