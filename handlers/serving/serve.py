"""`parley serve`: from settings to a running server and its orderly end."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

from handlers.serving import logs, stderr
from handlers.serving.open_files import require_files
from handlers.settings.reading import Reading
from handlers.settings.row import SettingsError
from handlers.settings.table import Settings
from inference import last_resorts
from inference.environment import SWITCH_SECONDS, prepare_environment
from inference.errors import ModelUnavailable
from inference.signals import end_by_hangup
from inference.types import EngineState

if TYPE_CHECKING:
    from inference.config import EngineConfig
    from inference.core import Core
    from inference.frontend.client import EngineClient
    from inference.types import ModelInfo

logger = logging.getLogger("parley")

GC_THRESHOLD = (20_000, 20, 100)  # a request makes a few hundred objects, which reference counts free
NO_ENGINE = "There is no engine any more, and so the server ends"
SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve(reading: Reading) -> int:
    """Serve until a signal ends it; returns the exit code, 1 if the model or the port can't be had."""
    settings = reading.settings
    logs.follow(settings)
    for warning in reading.warnings:
        logger.warning("%s", warning)
    with stderr.in_the_log():
        return _until_signalled(settings)


def _until_signalled(settings: Settings) -> int:
    prepare(settings)
    # what comes before uvicorn has handlers of its own ends at once
    for number in SIGNALS:
        signal.signal(number, _stop_early)
    end_by_hangup()
    try:
        require_files()
        if settings.replicas > 1:
            from handlers.fleet.environment import prepare_ray

            prepare_ray()  # which reads it when it is imported
            from handlers.fleet.serve import serve_fleet

            return serve_fleet(settings)
        if settings.api_workers > 1:
            from handlers.serving.workers import serve_workers

            return serve_workers(settings)
        return _serve(settings, make_engine(settings))
    except (ModelUnavailable, SettingsError) as error:
        logger.error("%s", error)
        return 1
    except SystemExit as ended:  # uvicorn's, which has logged why: the port is in use
        return 1 if ended.code else 0


async def load(settings: Settings, progress: Callable[[str], None]) -> ModelInfo:
    """Load the model as a server would and let go of it; raises ModelUnavailable."""
    prepare(settings)
    engine = make_engine(settings)
    try:
        await engine.start(progress)
        return engine.model
    finally:
        await engine.close()


def make_engine(settings: Settings, engines: int = 1) -> EngineClient:
    """Return the engine, not started; its start imports torch, in another process unless told otherwise.

    `engines`: how many there are on this machine, each of which has its part of the memory.
    """
    from inference.frontend.client import EngineClient
    from inference.text.pipeline import load_text

    config = replace(settings.engine_config(), engines=engines)
    return EngineClient(
        _core(config),
        config,
        lambda: load_text(
            config.model,
            workers=config.validation_workers,
            template_seconds=config.template_seconds,
            template_characters=config.template_characters,
        ),
    )


def prepare(settings: Settings) -> None:
    """Set the environment that libraries read when they are imported, and how long a thread keeps the GIL.

    The engine's thread asks for it at every operation. Behind one that reads a schema of 100 kB it then waits
    Python's 5 ms each time: `benchmarks.isolation` tells the difference.
    """
    sys.setswitchinterval(SWITCH_SECONDS)
    prepare_environment()
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    set_hub_token(settings)


def set_hub_token(settings: Settings) -> None:
    """Hand the token to huggingface_hub, which knows fewer names for it."""
    if settings.hf_token is not None:
        os.environ["HF_TOKEN"] = settings.hf_token


def _core(config: EngineConfig) -> Core:
    if config.separate_process:
        from inference.process.spawned import SpawnedCore

        return SpawnedCore(config)
    from inference.process.deferred import DeferredCore, torch_core

    return DeferredCore(lambda: torch_core(config))


def _serve(settings: Settings, engine: EngineClient) -> int:
    from handlers.app import create_app, say_unavailable
    from handlers.http.server import listen, run
    from handlers.metrics.metrics import Metrics
    from handlers.metrics.port import metrics_port
    from handlers.service import Service

    life = Life(loaded=lambda: say_served(settings, engine.model), unavailable=say_unavailable)
    metrics = Metrics()
    logs.tell_dropped(metrics.log_dropped)
    engine.add_life_listener(lambda _, __: life.on_life(engine.state))
    app = create_app(
        Service(settings, engine, metrics), on_loaded=life.on_loaded, on_unavailable=life.on_unavailable
    )
    for number in SIGNALS:
        signal.signal(number, life.on_signal)
    say_loading(settings)
    with metrics_port(settings.hostname, settings.prometheus_port, metrics.render):
        listening = listen(settings.hostname, settings.port)
        say_listening(settings)
        last_resorts.install()  # until now no client can have said anything
        run(app, settings, listening, engine.drain, name=life.name)
    gc.unfreeze()  # libraries count at the end what they haven't got back, and call it leaked
    logger.info("Stopped")
    return 1 if life.failed else 0


class Life:
    """What happens to a process that serves between its start and its end."""

    def __init__(self, loaded: Callable[[], None], unavailable: Callable[[str], None]) -> None:
        """`loaded` is called once the model is, `unavailable` with the reason why it can't be."""
        self._tell_loaded = loaded
        self._tell_unavailable = unavailable
        self.loading = True
        self.failed = False

    def on_loaded(self) -> None:
        """Settle down, and tell."""
        self.loading = False
        freeze()
        self._tell_loaded()

    def on_unavailable(self, reason: str) -> None:
        """End the server: there is nothing it could serve."""
        self.loading = False
        self.failed = True
        self._tell_unavailable(reason)
        signal.raise_signal(signal.SIGTERM)

    def on_life(self, state: EngineState) -> None:
        """End the server once its engine is gone for good, which the log has said."""
        if state is EngineState.FAILED and not self.failed:
            self.on_unavailable(NO_ENGINE)

    def name(self, number: int) -> str:
        """Return what the log calls the end by a signal; "" where it is our own, and the reason was told."""
        return "" if self.failed else signal.Signals(number).name

    def on_signal(self, number: int, frame: FrameType | None) -> None:
        """Take the signal that uvicorn raises again once it has shut down.

        A model that still loads would hold the process until it is done, as a thread can't be ended.
        """
        if self.loading:
            logger.info("Stopped while the model was loading")
            logging.shutdown()
            os._exit(0)


def say_loading(settings: Settings) -> None:
    """Say what is going to be served."""
    logger.info("Loading %s", settings.engine_config().model.name)


def say_listening(settings: Settings) -> None:
    """Say that the port is open."""
    logger.info("Listening on %s; until the model is loaded, the answer is 503", _address(settings))


def say_served(settings: Settings, model: ModelInfo) -> None:
    """Say what is served and what it takes, and then that it is."""
    from handlers.app import say_connected

    logger.info("Serving %s (%s on %s, level %s)", model.id, model.dtype, model.device_type, model.level)
    logger.info("Address %s, its documentation at /docs", _address(settings))
    resident = resident_bytes()
    if resident is not None:
        logger.info("Memory at rest: %d MiB", resident // 2**20)
    say_connected()


def freeze() -> None:
    """Hide what start-up made from the garbage collector, and have it look less often at what comes.

    Measured: 198 and 183 us of CPU for a request without and with the first (in one process), 206 and 198 us
    for the second (by `benchmarks.http`).
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(*GC_THRESHOLD)


def resident_bytes() -> int | None:
    """Return the memory that this process and all below it occupy, None where the system doesn't say."""
    try:
        return sum(map(_resident_bytes, _with_those_below("self")))
    except OSError:  # not Linux, or one has just ended
        return None


def _with_those_below(process: str) -> Iterator[str]:
    """Yield a process, those that it started, as the engine, and theirs in turn, as the engine's shards."""
    yield process
    for task in Path(f"/proc/{process}/task").glob("*/children"):
        for child in task.read_text().split():
            yield from _with_those_below(child)


def _resident_bytes(process: str) -> int:
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), 0)


def _stop_early(number: int, frame: FrameType | None) -> None:
    raise SystemExit(0)


def _address(settings: Settings) -> str:
    hostname = f"[{settings.hostname}]" if ":" in settings.hostname else settings.hostname
    return f"http://{hostname}:{settings.port}"
