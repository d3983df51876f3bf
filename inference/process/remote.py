"""A core in another process: attached to its socket, and attached again when it comes back."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from inference.core import FrameSink, Life
from inference.errors import ModelUnavailable
from inference.failures import STOPPED
from inference.images import distinct
from inference.ipc.framing import FrameFault, Unframer, pack, unpack
from inference.ipc.messages import (
    ENGINE_LIMIT,
    FROM_ENGINE,
    Abort,
    Attach,
    Batch,
    Change,
    Changed,
    Edition,
    FromEngine,
    Heard,
    Look,
    Progress,
    Ready,
    Unavailable,
    Vocabulary,
)
from inference.process.requests import to_submit
from inference.process.routing import Numbers
from inference.process.stream import READ_BYTES, Outbox, connected, received, shut
from inference.types import AdapterChange, CoreFailure, CoreRequest, Frame, Image, ModelInfo

if TYPE_CHECKING:
    from inference.ipc.grammar_tokens import GrammarTokens

LOG = logging.getLogger(__name__)

PAUSE_SECONDS = 1.0  # before attaching again to an engine that lets go at once
SHORT_SECONDS = 0.1  # of a stream: at once
STOPPED_EARLY = "The server was stopped while the model was loading"


class RemoteCore:
    """Implements `ReturningCore` over the socket at an address; belongs to the event loop that starts it.

    What goes to the engine is written at once, and what a full socket doesn't take waits here: as many
    requests as are admitted. Every step comes back as one frame, read on the event loop. When the
    stream ends, all requests fail and it attaches again: to the same socket, on which the engine's next
    process finds it. With `stats` it gets the numbers of every step, and logs what an engine says while it
    loads in another's place; only one process of a server needs them, or the log has everything many times.
    """

    def __init__(self, address: str, *, stats: bool = True) -> None:
        self._address = address
        self._stats = stats
        self._numbers = Numbers()
        self._unframer = Unframer(ENGINE_LIMIT)
        self._socket: socket.socket | None = None  # set while there is a stream
        self._since = 0.0  # when that was connected, time.monotonic() seconds
        self._outbox = Outbox()
        self._early: list[FromEngine] = []  # what came between `load` and `start`
        self._vocabulary: bytes | None = None  # the frame with it, set by `share`
        self._life = Life.DOWN
        self._halt = threading.Event()  # set by `stop`
        self._changed: Callable[[Life, ModelInfo | None], None] | None = None  # set by `watch`
        self._sink: FrameSink | None = None  # set by `start`, as are the next two
        self._loop: asyncio.AbstractEventLoop | None = None
        self._home = 0  # the loop's thread

    # --- loading, on any thread -----------------------------------------------------------------

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        """Attach, and wait until the engine is ready; raise ModelUnavailable."""
        while not self._halt.is_set():
            connects = self._connect()
            model = self._greeted(progress) if connects else None
            if model is not None:
                self._life = Life.UP
                return model
            self._halt.wait(self._pause if connects else PAUSE_SECONDS)
        raise ModelUnavailable(STOPPED_EARLY)

    def share(self, tokens: GrammarTokens) -> None:
        """Have the tokens of grammars ready to be sent."""
        self._vocabulary = pack(Vocabulary(tokens))

    def watch(self, changed: Callable[[Life, ModelInfo | None], None]) -> None:
        """Have every change told, on the event loop."""
        self._changed = changed

    # --- on the event loop ----------------------------------------------------------------------

    def start(self, sink: FrameSink) -> None:
        """Begin to read; called on the event loop on which `sink` is then called."""
        assert self._socket is not None, "load comes first"
        self._loop, self._home, self._sink = asyncio.get_running_loop(), threading.get_ident(), sink
        self._socket.setblocking(False)
        self._loop.add_reader(self._socket, self._read)
        self._send_vocabulary()
        early, self._early = self._early, []
        for message in early:
            self._take(message)

    def submit(self, request: CoreRequest) -> None:
        """Queue a request; while the engine is down it fails at once."""
        self._at_home(lambda: self._submit(request))

    def look(self, request_id: str, images: tuple[Image, ...], salt: str) -> None:
        """Have a request's images looked at; while the engine is down it fails at once."""
        self._at_home(lambda: self._look(request_id, images, salt))

    def change(self, change: AdapterChange) -> None:
        """Have an adapter loaded or unloaded; while the engine is down that fails at once."""
        self._at_home(lambda: self._change(change))

    def heard(self, edition: int) -> None:
        """Tell the engine that no request comes any more for an adapter that isn't in an edition."""
        self._at_home(lambda: self._post(pack(Heard(edition))))

    def abort(self, request_id: str) -> None:
        """Forget a request by the next step."""
        self._at_home(lambda: self._abort(request_id))

    def stop(self) -> None:
        """Detach: the engine aborts what runs, and here it fails; callable from any thread."""
        self._halt.set()
        loop = self._loop
        if loop is None or not loop.is_running() or threading.get_ident() == self._home:
            self._close()
            return
        closed = threading.Event()

        def close() -> None:
            self._close()
            self._fail_all()
            closed.set()

        loop.call_soon_threadsafe(close)
        closed.wait()

    def lose(self) -> None:
        """Let go of an engine that is no more, whoever still holds its end; callable from any thread.

        A process that not even SIGKILL ends keeps its sockets open: their end would never be read.
        """
        stream = self._socket
        if stream is not None:
            shut(stream)  # which is read as its end

    @property
    def alive(self) -> bool:
        """Return whether the engine is there and takes requests."""
        return self._life is Life.UP and not self._halt.is_set()

    # --- below ------------------------------------------------------------------------------------

    def _at_home(self, call: Callable[[], None]) -> None:
        """Have something done on the event loop: at once, if this is its thread."""
        assert self._loop is not None, "start comes first"
        if threading.get_ident() == self._home:
            call()
        else:
            self._loop.call_soon_threadsafe(call)

    def _look(self, request_id: str, images: tuple[Image, ...], salt: str) -> None:
        if self._is_there(request_id):
            number = self._numbers.add(request_id)
            self._post(pack(Look(number, request_id, *distinct(images), salt)))

    def _change(self, change: AdapterChange) -> None:
        if self._is_there(change.id):
            number = self._numbers.add(change.id)
            self._post(pack(Change(number, change.name, change.source, change.replaces)))

    def _is_there(self, request_id: str) -> bool:
        """Return whether the engine takes requests, and fail this one if it doesn't."""
        assert self._sink is not None
        if not self.alive:
            self._sink(Frame((CoreFailure(request_id, STOPPED),)))
        return self.alive

    def _submit(self, request: CoreRequest) -> None:
        assert self._sink is not None
        if not self._is_there(request.id):
            return
        number = self._numbers.add(request.id)
        try:
            frame = pack(to_submit(number, request))
        except Exception as error:  # whatever is wrong with one request, it has to end in one failure
            LOG.exception("Request %s could not be sent", request.id)
            self._numbers.remove(request.id)
            self._sink(Frame((CoreFailure(request.id, f"The request could not be sent: {error}"),)))
            return
        self._post(frame)

    def _abort(self, request_id: str) -> None:
        number = self._numbers.remove(request_id)
        if number is not None:
            self._post(pack(Abort(number)))

    def _send_vocabulary(self) -> None:
        if self._vocabulary is not None:
            self._post(self._vocabulary)

    def _post(self, frame: bytes) -> None:
        if self._socket is None:  # stopped; aborts may still come
            return
        assert self._loop is not None
        self._outbox.post(frame, self._socket, self._loop)

    def _read(self) -> None:
        """Take all that has come: beside an error uvloop calls once for it, and never again."""
        while self._socket is not None and self._read_some(self._socket):
            pass

    def _read_some(self, stream: socket.socket) -> bool:
        """Take some of what has come; return false where there is nothing."""
        try:
            data = stream.recv(READ_BYTES)
        except BlockingIOError:
            return False
        except OSError as error:
            LOG.debug("the engine's socket can't be read: %s", error)
            data = b""
        if not data:
            self._lose()
            return False
        try:
            for payload in self._unframer.feed(data):
                self._take(unpack(FROM_ENGINE, payload))
        except FrameFault as fault:
            LOG.error("what the engine sent can't be read: %s", fault)
            self._lose()
            return False
        return True

    def _take(self, message: FromEngine) -> None:
        if isinstance(message, Batch | Edition | Changed):
            assert self._sink is not None
            self._sink(self._numbers.frame(message))
        elif isinstance(message, Ready):
            self._life = Life.UP
            self._send_vocabulary()
            self._tell(Life.UP, message.model)
        elif isinstance(message, Progress):
            LOG.log(logging.INFO if self._stats else logging.DEBUG, "%s", message.line)
        else:
            LOG.log(logging.ERROR if self._stats else logging.DEBUG, "%s", message.message)

    def _lose(self) -> None:
        """Fail what ran, and attach again."""
        was_up = self._life is Life.UP
        self._life = Life.DOWN
        self._close()
        if was_up:
            self._tell(Life.DOWN, None)
        self._fail_all()
        assert self._loop is not None
        self._loop.call_later(self._pause, self._attach)

    def _attach(self) -> None:
        if self._halt.is_set():
            return
        assert self._loop is not None
        try:
            connects = self._connect()
        except ModelUnavailable as error:
            LOG.critical("%s", error)
            self._life = Life.GONE
            self._tell(Life.GONE, None)
            return
        if self._socket is not None:
            self._loop.add_reader(self._socket, self._read)
        elif not connects:
            self._loop.call_later(PAUSE_SECONDS, self._attach)

    @property
    def _pause(self) -> float:
        """Return how long to wait before attaching again: the socket itself waits for the next engine."""
        return PAUSE_SECONDS if time.monotonic() - self._since < SHORT_SECONDS else 0.0

    def _tell(self, life: Life, model: ModelInfo | None) -> None:
        if self._changed is not None:
            self._changed(life, model)

    def _fail_all(self) -> None:
        lost = self._numbers.drop()
        if lost and self._sink is not None:
            self._sink(Frame(tuple(CoreFailure(request_id, STOPPED) for request_id in lost)))

    def _close(self) -> None:
        stream, self._socket = self._socket, None
        self._outbox.clear()
        if stream is None:
            return
        if self._loop is not None and not self._loop.is_closed():
            self._loop.remove_reader(stream)
            self._loop.remove_writer(stream)
        shut(stream)  # also wakes a thread that is still in `load`
        stream.close()

    def _connect(self) -> bool:
        """Connect and attach, waiting only before `start`; return whether that could be done now.

        Raises ModelUnavailable if it never will be.
        """
        stream = connected(self._address, pack(Attach(self._stats)), waits=self._loop is None)
        if stream is None:
            return False
        self._unframer = Unframer(ENGINE_LIMIT)
        self._socket, self._since = stream, time.monotonic()
        if self._halt.is_set():  # `stop` came while there was no socket that it could have closed
            self._close()
        return True

    def _greeted(self, progress: Callable[[str], None]) -> ModelInfo | None:
        """Return what is loaded once the engine is ready; None if it died before."""
        stream = self._socket
        while stream is not None and (data := received(stream)):
            messages = [unpack(FROM_ENGINE, payload) for payload in self._unframer.feed(data)]
            for at, message in enumerate(messages, 1):
                if isinstance(message, Ready):
                    self._early = messages[at:]
                    return message.model
                if isinstance(message, Unavailable):
                    self._close()
                    raise ModelUnavailable(message.message)
                if isinstance(message, Progress):
                    progress(message.line)
        self._close()
        return None
