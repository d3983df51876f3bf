"""`parley serve --replicas N`: Parley's own HTTP server, with the gateway for its application."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from ray.serve.handle import DeploymentHandle

from handlers.app import say_connected, say_unavailable
from handlers.fleet import lines
from handlers.fleet.cluster import Cluster, name_of
from handlers.fleet.gateway import Gateway
from handlers.fleet.handles import RayFleet
from handlers.fleet.stack import stack
from handlers.http.server import listen, run
from handlers.metrics.port import metrics_port
from handlers.serving import logs
from handlers.serving.serve import SIGNALS, Life, say_listening, say_loading
from handlers.settings.table import Settings
from inference import last_resorts
from inference.errors import ModelUnavailable

RENDER_SECONDS = 10.0
END_SECONDS = 5.0  # to end in order where the cluster couldn't be left

logger = logging.getLogger("parley")


def serve_fleet(settings: Settings) -> int:
    """Serve until a signal ends it; returns the exit code, 1 if the replicas or the port can't be had."""
    gateway = Gateway(settings)
    logs.tell_dropped(gateway.metrics.log_dropped)
    life = Life(loaded=lambda: _say_served(settings), unavailable=say_unavailable)
    for number in SIGNALS:
        signal.signal(number, life.on_signal)
    say_loading(settings)
    opening = Opening(settings, gateway, life)
    with metrics_port(settings.hostname, settings.prometheus_port, opening.render):
        listening = listen(settings.hostname, settings.port)
        say_listening(settings)
        last_resorts.install()
        with lines.in_the_log(name_of(settings)):
            app = stack(gateway, settings, opening.lifespan)
            run(app, settings, listening, gateway.drain, name=life.name)
    if not opening.left:
        end(life)  # else Ray goes on waiting for the cluster, whose processes end with this one
    end_soon(life)  # what Ray does as the interpreter ends may wait for a cluster, too
    logger.info("Stopped")
    return 1 if life.failed else 0


def end(life: Life) -> None:
    """End the process, whatever waits for anything in it."""
    logger.info("Stopped")
    logging.shutdown()  # what waits to be written is
    os._exit(1 if life.failed else 0)


def end_soon(life: Life) -> None:
    """End the process if it hasn't come to its end by itself in END_SECONDS."""
    ending = threading.Timer(END_SECONDS, end, (life,))
    ending.daemon = True
    ending.start()


class Opening:
    """Has the replicas placed while the port is open already, and ends them in the end."""

    def __init__(self, settings: Settings, gateway: Gateway, life: Life) -> None:
        self._settings = settings
        self._gateway = gateway
        self._life = life
        self._cluster = Cluster()
        self.left = True  # false: it couldn't be left in order
        self._loop: asyncio.AbstractEventLoop | None = None

    @asynccontextmanager
    async def lifespan(self, application: object) -> AsyncIterator[None]:
        """Place the replicas in the background."""
        self._loop = asyncio.get_running_loop()
        placing = asyncio.create_task(self._place())
        try:
            yield
        finally:
            placing.cancel()
            self.left = await asyncio.to_thread(self._cluster.leave)
            if not self.left:  # a call of Ray's may be waiting in the loop's threads, and the loop for them
                end_soon(self._life)

    def render(self) -> bytes:
        """Return the metrics of all replicas; for other threads than the event loop's."""
        if self._loop is None or self._loop.is_closed():
            return self._gateway.own_exposition()
        told = asyncio.run_coroutine_threadsafe(self._gateway.exposition(), self._loop)
        return told.result(RENDER_SECONDS)

    async def _place(self) -> None:
        try:
            self._gateway.fleet = RayFleet(await self._handle())
            self._life.on_loaded()
        except Exception as error:  # of Ray's, of which there are many; no client has said anything yet
            reason = f"{type(error).__name__}: {error}"
            self._life.on_unavailable(str(error) if isinstance(error, ModelUnavailable) else reason)

    async def _handle(self) -> DeploymentHandle:
        try:
            return await asyncio.to_thread(self._cluster.place, self._settings)
        finally:
            for number in SIGNALS:  # Ray has put its own before them
                signal.signal(number, signal.getsignal(number))


def _say_served(settings: Settings) -> None:
    logger.info("Serving %s by %d replicas", settings.engine_config().model.name, settings.replicas)
    say_connected()
