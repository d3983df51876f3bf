"""One of several API workers: it inherits the socket of the port, and shares the engine with the others.

`workers.py` starts it and holds the other end of its line, by which it is told what to do and tells
that it is ready. When the line ends, whoever started it is gone, and it ends as on SIGTERM.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from handlers.metrics.board import Board
from handlers.serving import logs
from handlers.settings.row import SettingsError
from handlers.settings.table import Settings
from inference import last_resorts
from inference.config import Found, again
from inference.errors import ModelUnavailable
from inference.frontend.owners import SharedOwners
from inference.frontend.places import SharedPlaces
from inference.frontend.shared import SharedMemory
from inference.ipc.leash import Leash, die_with_parent
from inference.signals import end_by_hangup

if TYPE_CHECKING:
    from starlette.types import ASGIApp, Message, Receive, Scope, Send

    from handlers.metrics.metrics import Metrics
    from handlers.serving.serve import Life
    from inference.frontend.client import EngineClient
    from inference.process.remote import RemoteCore

READY, FAILED, ALIVE = b"ready", b"failed", b"alive"  # what it tells: words, each at the start of a line
# what it is told: the engine can't be ended, and won't close its end of anything; all is to end at once; all
# have been ready
LOST, HURRY, COMPLETE = b"lost", b"hurry", b"complete"
LATE_SECONDS = 15.0  # after which even one that can't serve yet answers
ORPHANED_SECONDS = 5.0  # until what doesn't end by itself is ended

logger = logging.getLogger("parley")


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """What a worker is told, in one line of JSON; never in its arguments, as the API key is among it."""

    number: int  # from 0: its count among the places, and its row of the board
    workers: int
    engine: str  # address
    listening: int  # descriptors that it inherited
    places: int
    owners: int
    accounts: int
    board: int
    settings: Settings
    found: Found | None = None  # by an engine that has loaded the model already
    late: bool = False  # others serve already: it takes no connection before it can

    def encode(self) -> bytes:
        """Return the line."""
        return json.dumps(asdict(self)).encode() + b"\n"

    @classmethod
    def decode(cls, line: bytes) -> Post:
        """Read the line."""
        told: dict[str, Any] = json.loads(line)
        given: dict[str, Any] = {
            name: tuple(value) if isinstance(value, list) else value
            for name, value in told.pop("settings").items()
        }
        found = told.pop("found")
        return cls(settings=Settings(**given), found=found and Found(**found), **told)

    @property
    def descriptors(self) -> tuple[int, ...]:
        """Return what the worker must inherit."""
        return self.listening, self.places, self.owners, self.accounts, self.board


def main(descriptor: int) -> int:
    """Serve until SIGTERM or the end of the line, which has this descriptor; returns the exit code."""
    die_with_parent()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, _stop_early)
    end_by_hangup()
    line = socket.socket(fileno=descriptor)
    with line.makefile("rb") as told:
        post = Post.decode(told.readline())
    settings = post.settings
    logs.follow(settings)
    try:
        return _serve(post, line)
    except (SettingsError, ModelUnavailable) as error:  # as one process says it: by its words alone
        line.sendall(failed(str(error)))
        return 1


def _serve(post: Post, line: socket.socket) -> int:
    from handlers.app import create_app
    from handlers.http.server import open_port, run
    from handlers.quotas import SharedAccounts
    from handlers.service import Service
    from handlers.serving.serve import prepare
    from inference.process.remote import RemoteCore

    settings = post.settings
    last_resorts.install()
    faulthandler.enable()
    prepare(settings)
    loaded = asyncio.Event()
    life = _life(line, loaded)
    core = RemoteCore(post.engine, stats=False)
    complete = threading.Event()
    if post.late:
        complete.set()
    # A service manager may send its signal to all processes of a service, beside the one that we are sent
    hurries = threading.Semaphore(0)  # each repeated signal that counts
    threading.Thread(
        target=_listen, args=(line, core.lose, hurries, complete), name="line", daemon=True
    ).start()
    engine, metrics = _engine(post, core), _metrics(post)
    logs.tell_dropped(metrics.log_dropped)
    accounts = SharedAccounts(SharedMemory.inherited(post.accounts))
    app = create_app(
        Service(settings, engine, metrics, complete.is_set, accounts),
        progress=logger.debug,  # whoever started us has said it
        on_loaded=life.on_loaded,
        on_unavailable=life.on_unavailable,
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, life.on_signal)
    if post.late:
        app = held(app, loaded, LATE_SECONDS)
    listening = socket.socket(fileno=post.listening)
    open_port(listening, settings.hostname, settings.port)
    leash = Leash(os.getppid())
    run(
        app,
        settings,
        listening,
        engine.drain,
        beat=lambda: _beat(line, leash),
        hurries=partial(hurries.acquire, blocking=False),
        name=lambda number: life.name(number) and f"API worker {post.number}",
    )
    return 1 if life.failed else 0


def _life(line: socket.socket, loaded: asyncio.Event) -> Life:
    from handlers.serving.serve import Life

    def tell_loaded() -> None:
        loaded.set()
        line.sendall(READY + b"\n")

    def tell_unavailable(reason: str) -> None:
        line.sendall(failed(reason))

    return Life(tell_loaded, tell_unavailable)


def failed(reason: str) -> bytes:
    """Return the line by which a worker says why it can't serve."""
    return FAILED + b" " + " ".join(reason.split()).encode() + b"\n"


def held(app: ASGIApp, loaded: asyncio.Event, seconds: float) -> ASGIApp:
    """Return an application that says it has started once it has loaded, or so many seconds have passed."""

    async def hold(scope: Scope, receive: Receive, send: Send) -> None:
        async def send_late(message: Message) -> None:
            if message["type"] == "lifespan.startup.complete":
                with suppress(TimeoutError):
                    await asyncio.wait_for(loaded.wait(), seconds)
            await send(message)

        await app(scope, receive, send_late if scope["type"] == "lifespan" else send)

    return hold


def _engine(post: Post, core: RemoteCore) -> EngineClient:
    from inference.frontend.client import EngineClient
    from inference.text.pipeline import load_text

    config = again(post.settings.engine_config(), post.found)
    places = SharedPlaces(SharedMemory.inherited(post.places), post.number)
    owners = SharedOwners(SharedMemory.inherited(post.owners), post.workers, post.number)
    return EngineClient(
        core,
        config,
        lambda: load_text(
            config.model,
            workers=config.validation_workers,
            template_seconds=config.template_seconds,
            template_characters=config.template_characters,
        ),
        places,
        owners,
    )


def _metrics(post: Post) -> Metrics:
    from handlers.metrics.metrics import Metrics

    rows = post.workers + 1  # the last is that of the process that started us
    return Metrics(Board.of(SharedMemory.inherited(post.board), rows), post.number)


def _listen(
    line: socket.socket,
    lose: Callable[[], None],
    hurries: threading.Semaphore,
    complete: threading.Event,
) -> None:
    """Wait for the end of the line, and end then, soon: the port may be wanted by a successor."""
    with line.makefile("rb") as told:
        try:
            for word in told:
                if word.strip() == LOST:
                    lose()
                if word.strip() == COMPLETE:
                    complete.set()
                if word.strip() == HURRY:
                    hurries.release()
                    os.kill(os.getpid(), signal.SIGTERM)
        except OSError:
            logger.debug("the line of this worker broke")
    hurries.release()
    for _ in range(2):  # the engine ends as well, so that nothing can run on
        os.kill(os.getpid(), signal.SIGTERM)
        time.sleep(ORPHANED_SECONDS / 2)
    logging.shutdown()
    os._exit(1)


def _beat(line: socket.socket, leash: Leash) -> None:
    """Give a sign of life; if nobody reads them, they aren't needed."""
    leash.hold()
    with suppress(BlockingIOError, ConnectionError):
        line.send(ALIVE + b"\n", socket.MSG_DONTWAIT)


def _stop_early(number: int, frame: object) -> None:
    raise SystemExit(0)


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
