"""The engine's socket: any number of API processes attached to one core.

One thread reads from all of them and writes what could not be written at once. The core's own thread
writes each step's frames itself, as far as the sockets take them: a slow reader holds up nobody.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from itertools import count

from inference.core import Core, PacedCore, SeeingCore
from inference.ipc.framing import FrameFault, Payload, pack, unpack
from inference.ipc.messages import (
    FROM_API,
    Abort,
    Attach,
    Batch,
    Change,
    Heard,
    Look,
    Progress,
    Ready,
    Submit,
    Unavailable,
    Vocabulary,
)
from inference.ipc.watchdog import LOOK_SECONDS, UNREAD_SECONDS
from inference.process.announcing import Announcements
from inference.process.connection import OUTBOX_BYTES, Connection
from inference.process.grammars import Shelf
from inference.process.requests import from_submit
from inference.process.routing import Routes, frames
from inference.types import CoreFailure, CoreOutput, CoreRequest, Frame, Image, Looked, ModelInfo

LOG = logging.getLogger(__name__)

Handler = Callable[[int], None]  # of a socket's events


class EngineServer:
    """Serves one core to whoever attaches to a listening socket."""

    def __init__(
        self,
        listening: socket.socket,
        *,
        outbox_bytes: int = OUTBOX_BYTES,
        unread_seconds: float = UNREAD_SECONDS,
        died: Callable[[], None] | None = None,
    ) -> None:
        """`died` is called, from its thread, if it can't go on."""
        self._listening = listening
        self._died = died
        self._outbox_bytes = outbox_bytes
        self._unread_seconds = unread_seconds
        self._look_seconds = min(LOOK_SECONDS, unread_seconds / 4)
        self._core: Core | None = None  # set by `ready`
        self._routes: Routes[Connection] = Routes()
        self._shelf = Shelf()
        self._connections: set[Connection] = set()
        self._behind: set[Connection] = set()  # those that something waits for, as the socket's thread knows
        self._numbers = count(1)
        self._greeting: list[bytes] = []  # what everyone is told who attaches
        self.served = False  # a token
        self._lock = threading.Lock()  # guards the greeting, and who has had it
        self._selector = selectors.DefaultSelector()
        self._attention: deque[Connection] = deque()
        self._bell, self._button = socket.socketpair()
        self._closing = False
        self._announcements = Announcements()
        self._model: ModelInfo | None = None  # set by `ready`
        self._thread = threading.Thread(target=self._run, name="engine-socket", daemon=True)

    # --- the engine's life --------------------------------------------------------------------

    def start(self) -> None:
        """Begin to take processes in; they hear of the loading until `ready`."""
        self._listening.setblocking(False)
        self._bell.setblocking(False)
        self._button.setblocking(False)
        self._selector.register(self._listening, selectors.EVENT_READ, self._accept)
        self._selector.register(self._bell, selectors.EVENT_READ, self._wake)
        self._thread.start()

    def progress(self, line: str) -> None:
        """Tell everyone a line about the loading."""
        self._tell(Progress(line))

    def ready(self, core: Core, model: ModelInfo) -> None:
        """Tell everyone that requests are taken, for a core that was started with `sink`."""
        self._core, self._model = core, model
        self._announcements.core = core
        if isinstance(core, PacedCore):
            core.pace(self._is_full)
        self._tell(Ready(model))

    def unavailable(self, message: str) -> None:
        """Tell everyone that the model can't be loaded."""
        self._tell(Unavailable(message))

    def sink(self, frame: Frame) -> None:
        """Send a step's outputs to those who asked for them; called from the core's thread."""
        self.served = self.served or any(isinstance(each, CoreOutput) for each in frame.outputs)
        if frame.edition is not None or frame.changed:
            self._announce(frame)
        batches = self._routes.split(frame)
        if frame.stats is not None:
            for connection in list(self._connections):
                if connection.wants_stats:
                    batches.setdefault(connection, Batch()).stats = frame.stats
        for connection, batch in batches.items():
            try:
                for data in frames(batch):
                    connection.post(data)
            except Exception:  # the core's thread goes on whatever becomes of one process
                LOG.exception("A step could not be sent to API process %d", connection.number)
                connection.give_up("a step could not be sent")
                self._attend(connection)

    def close(self) -> None:
        """Stop serving; what is attached sees the end of its stream."""
        self._closing = True
        self._ring()
        self._thread.join()
        for connection in list(self._connections):
            self._detach(connection, "the engine ends", logging.DEBUG)
        self._selector.close()
        self._bell.close()
        self._button.close()

    # --- the socket's thread ------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                for key, events in self._selector.select(self._look_seconds if self._behind else None):
                    handler: Handler = key.data
                    handler(events)
                self._look_at_readers()
        except BaseException:  # of the machine, e.g. no more descriptors; nobody may wait for a dead thread
            LOG.critical("The engine's socket can't be served any more", exc_info=True)
            if self._died is not None:
                self._died()

    def _accept(self, events: int) -> None:
        try:
            stream, _ = self._listening.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        connection = Connection(
            next(self._numbers), stream, self._attend, self._outbox_bytes, self._unread_seconds
        )
        with self._lock:
            self._connections.add(connection)
        self._selector.register(stream, selectors.EVENT_READ, partial(self._serve, connection))

    def _wake(self, events: int) -> None:
        self._bell.recv(4096)
        while self._attention:
            self._look_after(self._attention.popleft())

    def _serve(self, connection: Connection, events: int) -> None:
        if events & selectors.EVENT_WRITE:
            connection.flush()
            self._look_after(connection)
            if not connection.full and isinstance(self._core, PacedCore):
                self._core.ask_again()  # whatever was written meanwhile: somebody may have been held back
        if events & selectors.EVENT_READ and connection.socket.fileno() >= 0:
            self._read(connection)

    def _read(self, connection: Connection) -> None:
        try:
            payloads = connection.read()
            for payload in payloads or ():
                self._take(connection, payload)
        except FrameFault as fault:
            self._detach(connection, str(fault))
        except Exception as error:  # whatever one process brought about, the others go on
            LOG.exception("API process %d could not be served", connection.number)
            self._detach(connection, f"{type(error).__name__}: {error}")
        else:
            if payloads is None:
                self._detach(connection, "it has gone", logging.DEBUG)

    def _look_after(self, connection: Connection) -> None:
        """Have the socket watched for room while something waits for it, or let go of it."""
        if connection.socket.fileno() < 0:
            return
        if connection.fault is not None:
            self._detach(connection, connection.fault)
            return
        (self._behind.add if connection.waiting else self._behind.discard)(connection)
        events = selectors.EVENT_READ | (selectors.EVENT_WRITE if connection.waiting else 0)
        self._selector.modify(connection.socket, events, partial(self._serve, connection))

    def _look_at_readers(self) -> None:
        now = time.monotonic()
        for connection in list(self._behind):
            connection.look(now)
            if connection.fault is not None:
                self._detach(connection, connection.fault)

    def _is_full(self, core_id: str) -> bool:
        """Return whether too much waits already for whoever asked for this; called from the core's thread."""
        connection = self._routes.owner(core_id)
        return connection is not None and connection.full

    def _detach(self, connection: Connection, reason: str, level: int = logging.WARNING) -> None:
        with self._lock:
            self._connections.discard(connection)
        self._behind.discard(connection)
        dropped = self._routes.drop(connection)
        LOG.log(
            logging.INFO if dropped and level < logging.INFO else level,
            "API process %d is let go, with %d requests: %s",
            connection.number,
            len(dropped),
            reason,
        )
        self._selector.unregister(connection.socket)
        connection.close()
        self._announcements.drop(connection)
        for core_id in dropped:
            self._loaded().abort(core_id)

    # --- messages -----------------------------------------------------------------------------

    def _take(self, connection: Connection, payload: Payload) -> None:
        message = unpack(FROM_API, payload)
        if not connection.attached:
            if not isinstance(message, Attach):
                raise FrameFault(f"{type(message).__name__} came before Attach")
            self._attach(connection, message)
        elif isinstance(message, Submit):
            self._submit(connection, message)
        elif isinstance(message, Look):
            self._look(connection, message)
        elif isinstance(message, Change):
            self._announcements.ask(connection, message)
        elif isinstance(message, Heard):
            self._announcements.hear(connection, message.edition)
        elif isinstance(message, Abort):
            core_id = self._routes.remove(connection, message.number)
            if core_id is not None:
                self._loaded().abort(core_id)
        elif isinstance(message, Vocabulary):
            connection.vocabulary = self._shelf.add(message)
        else:
            raise FrameFault(f"{type(message).__name__} came a second time")

    def _attach(self, connection: Connection, message: Attach) -> None:
        connection.wants_stats = message.stats
        with self._lock:
            connection.attached = True
            for frame in self._greeting:
                connection.post(frame)

    def _submit(self, connection: Connection, message: Submit) -> None:
        core_id = self._add(connection, message)
        try:
            self._loaded().submit(self._request(connection, message, core_id))
        except FrameFault:
            raise
        except BaseException as error:  # even a panic of native code: the other requests go on
            LOG.exception("Request %s could not be queued", message.id)
            self.sink(Frame((CoreFailure(core_id, f"The request could not be queued: {error}"),)))

    def _look(self, connection: Connection, message: Look) -> None:
        if not all(0 <= which < len(message.files) for which in message.which):
            raise FrameFault("an image came without its file")
        core, core_id = self._core, self._add(connection, message, early=True)
        if isinstance(core, SeeingCore):
            images = tuple(Image(data=message.files[which]) for which in message.which)
            core.look(core_id, images, message.salt)
        else:
            self.sink(
                Frame((), looked=(Looked(core_id, message="The engine takes no images", invalid=True),))
            )

    def _announce(self, frame: Frame) -> None:
        """Have all who are attached, or will be, know of an edition, and then those who asked for it."""
        if frame.edition is not None:
            assert self._model is not None, "ready comes first"
            self._model = replace(self._model, adapters=frame.edition.adapters)
            with self._lock:
                self._greeting[-1] = pack(Ready(self._model))
                self._announcements.tell(frame.edition, [each for each in self._connections if each.attached])
        for changed in frame.changed:
            self._announcements.answer(changed)
        self._announcements.settle()

    def _add(self, connection: Connection, message: Submit | Look, *, early: bool = False) -> str:
        """Return the core's id of a request that is taken on; raise FrameFault."""
        if self._core is None:
            raise FrameFault("a request came before the model was loaded")
        # The client's id is for the log; another process may have the same
        core_id = f"{message.id}#{connection.number}.{message.number}"
        self._routes.add(connection, message.number, core_id, early=early)
        return core_id

    def _request(self, connection: Connection, message: Submit, core_id: str) -> CoreRequest:
        grammar = None
        if message.grammar is not None:
            grammar = self._shelf.grammar(connection.vocabulary, message.grammar)
        return from_submit(message, core_id, grammar)

    # --- parts --------------------------------------------------------------------------------

    def _tell(self, message: Progress | Ready | Unavailable) -> None:
        frame = pack(message)
        with self._lock:
            self._greeting.append(frame)
            for connection in self._connections:
                if connection.attached:
                    connection.post(frame)

    def _attend(self, connection: Connection) -> None:
        """Have the socket's thread look after a connection; from any thread."""
        self._attention.append(connection)
        self._ring()

    def _ring(self) -> None:
        try:
            self._button.send(b"\0")
        except OSError:  # it rings already, or has been taken down
            LOG.debug("the socket's thread was not woken")

    def _loaded(self) -> Core:
        assert self._core is not None, "requests are taken only then"
        return self._core
