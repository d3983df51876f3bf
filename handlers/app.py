"""The whole server as one ASGI application.

edge > cors > [response check] > contract > operations
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any

from starlette.responses import Response
from starlette.types import ASGIApp

import openapi
from handlers.access_log import AccessLog
from handlers.account import Observer
from handlers.http.call import Operation
from handlers.http.contract import Lifespan, contract_app
from handlers.http.cors import cors
from handlers.http.docs import docs_app
from handlers.http.middleware import Edge
from handlers.http.responses import Report, ResponseCheck, log_violation
from handlers.routes.aliases import with_aliases
from handlers.routes.cloud import compile_shapes
from handlers.routes.exclusions import lift_exclusions
from handlers.routes.operations import OPERATIONS
from handlers.service import Service
from inference.errors import ModelUnavailable
from inference.types import EngineState

logger = logging.getLogger("parley")


def say_unavailable(reason: str) -> None:
    """Say why there is no model; as long as the server goes on, inference is answered with 503."""
    logger.error("%s", reason)


def say_connected() -> None:
    """Say that the server is ready in TGI's word, which deployments wait for."""
    logger.info("Connected")


def create_app(
    service: Service,
    *,
    operations: Mapping[str, Operation[Any, Response]] = OPERATIONS,
    on_unavailable: Callable[[str], None] = say_unavailable,
    on_loaded: Callable[[], None] = say_connected,
    progress: Callable[[str], None] = logger.info,
    report: Report = log_violation,
    observers: Sequence[Observer] = (),
) -> ASGIApp:
    """Return the application; its lifespan loads the engine, and drains it in the end.

    `on_unavailable` is told why the model can't be loaded, `on_loaded` that it is, `progress` what happens
    meanwhile, `report` what `validate_responses` finds, and `observers` of every request. Whatever is wrong
    with the document or the operations is raised here.
    """
    settings = service.settings
    document, operations = with_aliases(openapi.load(), operations, settings)
    lift_exclusions(document, settings)
    compile_shapes(document["components"], settings.validator)
    app = contract_app(
        document,
        operations,
        service,
        beside=docs_app(document, openapi.text()),
        lifespan=engine_lifespan(service, on_unavailable, on_loaded, progress),
    )
    if settings.validate_responses:
        app = ResponseCheck(app, document, validator=settings.validator, report=report)
    return Edge(
        cors(app, settings.cors_allow_origin),
        [*observers_of(service), *observers],
        header_limit=settings.header_limit,
        max_headers=settings.max_headers,
        openai_dialect=settings.openai_dialect,
    )


def observers_of(service: Service) -> Iterator[Observer]:
    """Yield who is told of each request."""
    settings = service.settings
    yield service.metrics
    yield AccessLog(prompts=settings.log_prompts)
    if settings.otlp_endpoint is not None:
        from handlers.tracing import Tracing, exporting_tracer  # libraries that not everybody has

        model = settings.engine_config().model.name
        yield Tracing(exporting_tracer(settings), model, prompts=settings.log_prompts)


def engine_lifespan(
    service: Service,
    on_unavailable: Callable[[str], None] = say_unavailable,
    on_loaded: Callable[[], None] = say_connected,
    progress: Callable[[str], None] = logger.info,
) -> Lifespan:
    """Return the lifespan that loads the engine in the background: the port is open meanwhile."""

    @contextlib.asynccontextmanager
    async def lifespan(app: Any) -> AsyncIterator[None]:
        loading = asyncio.create_task(_load(service, on_unavailable, on_loaded, progress))
        try:
            yield
        finally:
            loading.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await loading
            await service.engine.drain(service.settings.graceful_termination_timeout)
            await service.engine.close()

    return lifespan


async def _load(
    service: Service,
    on_unavailable: Callable[[str], None],
    on_loaded: Callable[[], None],
    progress: Callable[[str], None],
) -> None:
    try:
        await service.engine.start(progress)
        if service.engine.state is not EngineState.READY:  # told to end meanwhile
            return
        service.metrics.bind(service.engine.model)
        if service.metrics.hears_engine:
            service.engine.add_listener(service.metrics.on_step)
            service.engine.add_life_listener(service.metrics.on_life)
        else:
            service.engine.add_life_listener(service.metrics.renew)
        on_loaded()
    except ModelUnavailable as error:
        on_unavailable(str(error))
    except Exception as error:  # a fault of ours: nobody awaits this task, so it must be told here
        logger.exception("The model was loaded, but can't be served")
        on_unavailable(f"{type(error).__name__}: {error}")
