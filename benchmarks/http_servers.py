"""The servers that `benchmarks.http` compares: the same operations and fake engine, different frameworks."""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

import connexion
import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp

import openapi
from handlers.app import create_app, engine_lifespan
from handlers.http.call import Call, Operation
from handlers.http.exchange import Exchange, attach
from handlers.http.replies import json_reply
from handlers.metrics.metrics import Metrics
from handlers.routes.generate import generate, generate_stream
from handlers.routes.operations import OPERATIONS
from handlers.service import Service
from handlers.settings.table import Settings
from inference.fakes.core import fake_client

Operations = Mapping[str, Operation[Any, Response]]
COUNT = "Count"


async def constant(service: Service, call: Call[Any]) -> Response:
    """Answer without an engine: what remains is HTTP's share."""
    return json_reply({"generated_text": " there"})


ENGINE: Operations = {"generate": generate, "generate_stream": generate_stream}
CONSTANT: Operations = {"generate": constant, "generate_stream": generate_stream}


def make_service(step_seconds: float) -> Service:
    """Return a service on the fake engine, with the default settings.

    Where the engine takes its time, COUNT has a long answer; else it answers within `submit`.
    """
    settings = Settings()
    replies = {COUNT: "and " * 2000} if step_seconds else None
    engine = fake_client(settings.engine_config(), replies=replies, step_seconds=step_seconds)
    return Service(settings, engine, Metrics())


def parley_app(service: Service, operations: Operations) -> ASGIApp:
    """Return the application as it is deployed."""
    logging.getLogger("parley.access").setLevel(logging.WARNING)
    return create_app(service, operations={**OPERATIONS, **operations})


def starlette_app(service: Service, operations: Operations) -> ASGIApp:
    """Return the two operations under Starlette alone: no contract, no checks, no request ids."""

    def route(path: str, operation: Operation[Any, Response]) -> Route:
        async def endpoint(request: Request) -> Response:
            return await operation(service, _call(request, orjson.loads(await request.body())))

        return Route(path, endpoint, methods=["POST"])

    routes = [route(f"/{name}", operation) for name, operation in operations.items()]
    return Starlette(routes=routes, lifespan=engine_lifespan(service, _fail))


def connexion_app(service: Service, operations: Operations) -> ASGIApp:
    """Return the two operations under connexion's own AsyncApp: its routing, validation and decorators."""
    document: dict[str, Any] = copy.deepcopy(openapi.load())
    document["security"] = []  # as with us: no key is configured
    app = connexion.AsyncApp(__name__, lifespan=engine_lifespan(service, _fail))

    def resolve(operation_id: str) -> Callable[..., Any]:
        operation = operations.get(operation_id)
        if operation is None:
            return _absent

        async def endpoint(body: Any) -> Response:
            return await operation(service, _call(connexion.request.scope, body))

        return endpoint

    app.add_api(document, resolver=connexion.resolver.Resolver(resolve))
    served: ASGIApp = app
    return served


SERVERS: dict[str, Callable[[Service, Operations], ASGIApp]] = {
    "parley": parley_app,
    "starlette": starlette_app,
    "connexion": connexion_app,
}


def _call(scope: Any, body: Any) -> Call[Any]:
    """Return what an operation needs; errors inside of a stream want the exchange, too."""
    attach(scope.scope if isinstance(scope, Request) else scope, Exchange("benchmark", time.monotonic()))
    return Call(body=body, path={}, received=time.monotonic())


async def _absent() -> Response:
    """Stand for the operations that aren't measured."""
    raise HTTPException(404)


def _fail(reason: str) -> None:
    raise RuntimeError("the fake engine can't be loaded")
