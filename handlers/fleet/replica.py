"""One replica: the whole application with an engine of its own, in an actor of Ray Serve."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import ExitStack, suppress
from dataclasses import replace
from typing import Any

from ray import serve
from uvicorn import Config
from uvicorn.lifespan.on import LifespanOn

from handlers.app import create_app
from handlers.fleet.call import Accepted, Call, Piece, Route
from handlers.fleet.connection import cpus_here
from handlers.fleet.lines import configure
from handlers.fleet.shares import Share, threads_here
from handlers.metrics.metrics import Metrics
from handlers.service import Service
from handlers.serving import logs, stderr
from handlers.serving.serve import freeze, make_engine, prepare
from handlers.settings.reading import with_card
from handlers.settings.table import Settings
from inference import last_resorts
from inference.errors import ModelUnavailable
from inference.machine import usable_cores
from inference.types import EngineState

logger = logging.getLogger("parley")


class Replica:
    """Answers what the gateway passes on; Ray Serve gives it requests once the model is loaded."""

    def __init__(self, settings: Settings, share: Share) -> None:
        """`settings` are those of one replica, see `handlers.fleet.shares`."""
        configure(settings)
        cpus = cpus_here()
        threads = threads_here(settings, share, cpus, usable_cores())
        settings = replace(with_card(settings), compute_threads=threads)
        self._held = ExitStack()  # never closed: it lasts as long as the process
        self._held.enter_context(stderr.in_the_log())
        prepare(settings)
        last_resorts.install()
        self._name = serve.get_replica_context().replica_id.unique_id
        self._metrics = Metrics()
        logs.tell_dropped(self._metrics.log_dropped)
        self._loaded = asyncio.get_running_loop().create_future()
        try:
            self._engine = make_engine(settings, share.beside(settings.replicas, cpus))
        except ModelUnavailable as error:
            logger.error("%s", error)
            raise
        self._app = create_app(
            Service(settings, self._engine, self._metrics),
            on_loaded=self._on_loaded,
            on_unavailable=self._on_unavailable,
        )
        self._lifespan = LifespanOn(Config(self._app, lifespan="on", log_config=None))
        self._calls: set[asyncio.Task[None]] = set()
        self._began = False
        self._traces = settings.otlp_endpoint is not None

    def _on_loaded(self) -> None:
        freeze()
        logger.info("Replica %s serves %s", self._name, self._engine.model.id)
        self._loaded.set_result(None)

    def _on_unavailable(self, reason: str) -> None:
        logger.error("%s", reason)
        if not self._loaded.done():
            self._loaded.set_exception(ModelUnavailable(reason))

    async def check_health(self) -> None:
        """Load the model, when asked for the first time; later raise if nothing but a new replica can help.

        Ray Serve asks before it sends anything, waits for the answer as long as for the constructor, and
        replaces a replica that raises.
        """
        if not self._began:
            self._began = True
            await self._lifespan.startup()
        if self._lifespan.should_exit:
            raise RuntimeError("the application couldn't be started: see the log")
        await asyncio.shield(self._loaded)
        if self._engine.state is EngineState.FAILED:
            raise ModelUnavailable("The engine has failed")

    async def answer(
        self, head: dict[str, Any], body: bytes, *, route: Route
    ) -> AsyncIterator[Accepted | Piece]:
        """Yield the answer to one request as it is made; its route is the router's, which has chosen."""
        yield Accepted(self._name)
        call = Call(self._app, head, body, declinable=route.declinable)
        task = asyncio.create_task(call.run())
        self._calls.add(task)
        task.add_done_callback(self._calls.discard)
        try:
            async for piece in call.pieces():
                yield piece
        finally:
            call.gone.set()  # the application ends what it does for a client that has left, by itself

    def metrics(self) -> tuple[str, bytes]:
        """Return the replica's name and its metrics."""
        return self._name, self._metrics.render()

    async def __del__(self) -> None:
        """End the engine, and send what traces are left: Ray Serve waits for it, and for nothing after it."""
        if getattr(self, "_began", False):
            await self._lifespan.shutdown()
            if self._traces:
                from handlers.tracing import EXPORT_SECONDS, flush

                with suppress(TimeoutError):  # Ray gives no more time for it
                    await asyncio.wait_for(asyncio.to_thread(flush), EXPORT_SECONDS)
