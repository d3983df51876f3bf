"""`parley serve --api-workers N`: one process that has the port, starts engine and workers, and keeps them.

    this process -- starts, watches --> engine <-- requests -- workers <-- connections -- the port
                 -- starts, watches -------------------------> workers

It serves nothing itself but the second port for metrics. The workers inherit the port's socket, the
memory in which they count the places they have taken and what each caller has asked for, and the board of
everyone's metrics.

The first worker lets connections come once it can answer them, seconds after the start, for which it has the
machine to itself and the engine: until then they are refused, as by a server with one process. If they were
let in before, they would hang.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from handlers.http.server import FAREWELL_SECONDS, SIGNALLED, bind, signal_name
from handlers.http.signals import Signals
from handlers.metrics.board import Board
from handlers.metrics.metrics import Metrics
from handlers.metrics.port import metrics_port
from handlers.metrics.table import width
from handlers.quotas import SharedAccounts
from handlers.serving import logs
from handlers.serving.serve import NO_ENGINE, SIGNALS, say_listening, say_loading, say_served
from handlers.serving.staff import Staff
from handlers.serving.worker import LOST, Post
from handlers.settings.table import Settings
from inference import last_resorts
from inference.core import Life
from inference.errors import ModelUnavailable
from inference.frontend.owners import SharedOwners
from inference.frontend.places import COUNT_BYTES, SharedPlaces
from inference.frontend.shared import SharedMemory
from inference.process.remote import RemoteCore
from inference.process.supervision import EngineProcess

if TYPE_CHECKING:
    from inference.types import Frame

LATE_SECONDS = 5  # after all that a worker may take to end

T = TypeVar("T")
logger = logging.getLogger("parley")


def serve_workers(settings: Settings) -> int:
    """Serve until a signal ends it; returns the exit code. Raises SettingsError if a port can't be had."""
    workers = settings.api_workers
    places = SharedMemory.create(workers * COUNT_BYTES)
    owners = SharedOwners.create(workers, settings.max_concurrent_requests)
    accounts = SharedAccounts.create()
    board = SharedMemory.create(Board.size(workers + 1, width()))
    metrics = Metrics(Board.of(board, workers + 1), workers)
    logs.tell_dropped(metrics.log_dropped)
    say_loading(settings)
    with metrics_port(settings.hostname, settings.prometheus_port, metrics.render):
        listening = bind(settings.hostname, settings.port)
        engine = EngineProcess(settings.engine_config())

        def post(number: int) -> Post:
            return Post(
                number=number,
                workers=workers,
                engine=engine.address,
                listening=listening.fileno(),
                places=places.descriptor,
                owners=owners.descriptor,
                accounts=accounts.descriptor,
                board=board.descriptor,
                settings=settings,
                found=engine.found,
            )

        def vacate(number: int) -> None:
            SharedPlaces(places, number).vacate(number)
            SharedOwners(owners, workers, number).vacate(number)
            metrics.bury(number)

        staff = Staff(post, vacate, settings.worker_timeout)
        server = Server(settings, listening, engine, metrics, staff)
        last_resorts.install()
        try:
            code = asyncio.run(server.run())
        finally:
            engine.stop()
    logger.info("Stopped")
    return code


class Server:
    """The parts of a server with several workers, from their start to their end."""

    def __init__(
        self,
        settings: Settings,
        listening: socket.socket,
        engine: EngineProcess,
        metrics: Metrics,
        staff: Staff,
    ) -> None:
        self._settings = settings
        self._listening = listening
        self._engine = engine
        self._metrics = metrics
        self._staff = staff
        self._core = RemoteCore(engine.address, stats=True)
        self._stop = asyncio.Event()
        self._failed = False
        self._signals = Signals()

    async def run(self) -> int:
        """Serve until a signal; returns the exit code."""
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._on_signal, number)
        self._engine.watch(partial(self._hear, loop))
        self._engine.start()
        working = asyncio.create_task(self._staff.work(self._settings.api_workers, self._fail))
        loading = asyncio.create_task(self._load())
        listening = asyncio.create_task(self._say_listening())
        stopping = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            loading.cancel()
            listening.cancel()
            self._listening.close()  # the workers close theirs in the end, and then nobody can connect
            patience = self._settings.graceful_termination_timeout + FAREWELL_SECONDS + LATE_SECONDS
            await self._staff.dismiss(patience)
            self._core.stop()
            stopping.cancel()
        await working
        if self._signals.count > 1:
            return SIGNALLED + self._signals.last
        return 1 if self._failed else 0

    def _hear(self, loop: asyncio.AbstractEventLoop, life: Life) -> None:
        """Hear, from the supervisor's thread, that the engine has come or gone."""
        if loop.is_closed():
            return
        if self._engine.held:
            loop.call_soon_threadsafe(self._on_held)
        if self._engine.failure is not None:
            loop.call_soon_threadsafe(self._fail, NO_ENGINE if self._engine.loaded else self._engine.failure)

    def _on_held(self) -> None:
        """Let go of an engine that can't be ended, and have the workers do so, too."""
        self._core.lose()
        self._staff.tell(LOST)

    def _on_signal(self, number: int) -> None:
        """Have all end in order; by a second signal soon, by a third at once."""
        if not self._signals.take(number):
            return
        count = self._signals.count
        if count == 1:
            logger.info("%s: the API workers are told to end", signal_name(number))
        if count == 2:
            logger.warning("Interrupted again: what still runs is cut off")
            self._staff.hurry(FAREWELL_SECONDS + LATE_SECONDS)
        if count > 2:
            self._staff.kill()
        self._stop.set()

    async def _say_listening(self) -> None:
        await self._staff.answering.wait()
        say_listening(self._settings)

    async def _load(self) -> None:
        try:
            model = await _in_thread(lambda: self._core.load(logger.info))
            self._metrics.bind(model)
            self._core.watch(self._metrics.on_life)
            self._core.start(self._on_frame)
            await self._staff.complete.wait()
            say_served(self._settings, model)
        except ModelUnavailable as error:
            self._fail(str(error))
        except Exception as error:  # a fault of ours: nobody awaits this task, so it must be told here
            logger.exception("The model can't be served")
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        """End the server; the first reason is told, as the others follow from it or repeat it."""
        if not self._stop.is_set():
            logger.error("%s", reason)
            self._failed = True
        self._stop.set()

    def _on_frame(self, frame: Frame) -> None:
        if frame.stats is not None:
            self._metrics.on_step(frame.stats)
        if frame.edition is not None:  # it asks for none, and is waited for as all are
            self._core.heard(frame.edition.number)


def _in_thread(function: Callable[[], T]) -> asyncio.Future[T]:
    """Run a function in a thread that the end of this process doesn't wait for."""
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(function())
        except BaseException as error:  # whatever it is, whoever awaits it hears of it
            future.set_exception(error)

    threading.Thread(target=run, name="loading", daemon=True).start()
    return asyncio.wrap_future(future)
