"""Ways to plant a defect in the application: in what functions return, in its document, in its streams."""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterator, Callable
from types import SimpleNamespace
from typing import Any

import orjson
import pytest
from starlette.responses import Response

import openapi
from handlers import app
from handlers.http.call import Call
from handlers.routes.operations import OPERATIONS
from handlers.service import Service

Plant = Callable[[pytest.MonkeyPatch], None]


def result(owner: Any, name: str, change: Callable[[Any], Any]) -> Plant:
    """Have a function return something else: `change` takes what it returns."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        right = getattr(owner, name)

        @functools.wraps(right)
        def wrong(*args: Any, **kwargs: Any) -> Any:
            return change(right(*args, **kwargs))

        patch.setattr(owner, name, wrong)

    return plant


def value(owner: Any, name: str, wrong: Any) -> Plant:
    """Have something else stand in its place."""
    return lambda patch: patch.setattr(owner, name, wrong)


def document(change: Callable[[Any], Any]) -> Plant:
    """Have the server read another document than the one it publishes."""

    def plant(patch: pytest.MonkeyPatch) -> None:
        changed = copy.deepcopy(openapi.load())
        change(changed)
        server_side = SimpleNamespace(load=lambda: copy.deepcopy(changed), text=openapi.text)
        patch.setattr(app, "openapi", server_side)

    return plant


def reply(operation: str, change: Callable[[Response], Response]) -> Plant:
    """Have an operation reply something else."""

    async def wrong(service: Service, call: Call[Any]) -> Response:
        return change(await OPERATIONS[operation](service, call))

    return _operation(operation, wrong)


def request(operation: str, change: Callable[[Any], None]) -> Plant:
    """Have an operation take its body for another: `change` alters it."""

    async def wrong(service: Service, call: Call[Any]) -> Response:
        body = copy.deepcopy(call.body)
        change(body)
        return await OPERATIONS[operation](service, Call(body, call.path, call.received, call.owner))

    return _operation(operation, wrong)


def body(change: Callable[[Any], Any]) -> Callable[[Response], Response]:
    """Return a change of a reply: its JSON is what `change` makes of it."""

    def changed(given: Response) -> Response:
        if not getattr(given, "body", b""):  # a stream has none
            return given
        headers = {name: text for name, text in given.headers.items() if name != "content-length"}
        return Response(orjson.dumps(change(orjson.loads(bytes(given.body)))), given.status_code, headers)

    return changed


def events(operation: str, change: Callable[[list[bytes]], list[bytes]]) -> Plant:
    """Have a stream send other events: `change` takes all that are framed."""

    def changed(stream: Any) -> Response:
        source = stream._feed._source

        async def wrong() -> AsyncIterator[bytes]:
            frames = b"".join([chunk async for chunk in source]).split(b"\n\n")[:-1]
            for frame in change([frame + b"\n\n" for frame in frames]):
                yield frame

        stream._feed._source = wrong()
        streamed: Response = stream
        return streamed

    return reply(operation, changed)


def _operation(name: str, wrong: Any) -> Plant:
    def plant(patch: pytest.MonkeyPatch) -> None:
        patch.setattr(app, "OPERATIONS", {**OPERATIONS, name: wrong})
        patch.setitem(app.create_app.__kwdefaults__ or {}, "operations", {**OPERATIONS, name: wrong})

    return plant
