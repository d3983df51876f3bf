"""An engine's socket in this process, and processes that attach to it, played by the test."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from inference.fakes.core import FakeCore, FakeModel
from inference.ipc.framing import Unframer, pack, unpack
from inference.ipc.messages import ENGINE_LIMIT, FROM_ENGINE, Attach, Batch, Submit
from inference.ipc.watchdog import UNREAD_SECONDS
from inference.process.address import Address
from inference.process.connection import OUTBOX_BYTES
from inference.process.server import EngineServer
from inference.types import CoreRequest, Frame, LogprobsMode, ModelInfo, Sampling
from tests.unit.inference.puppet import MODEL

SECONDS = 20.0
EOS, TOKENS = 2, tuple(range(40, 90))


class Recorder:
    """A core that notes what it is told, and says what the test has it say."""

    def __init__(self) -> None:
        self.requests: list[CoreRequest] = []
        self.aborted: list[str] = []
        self.told = threading.Condition()
        self.alive = True

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        return MODEL

    def start(self, sink: Callable[[Frame], None]) -> None:
        raise AssertionError("the test says what comes")

    def submit(self, request: CoreRequest) -> None:
        if request.prompt_ids == (13,):
            raise ValueError("thirteen")
        with self.told:
            self.requests.append(request)
            self.told.notify_all()

    def abort(self, request_id: str) -> None:
        with self.told:
            self.aborted.append(request_id)
            self.told.notify_all()

    def stop(self) -> None:
        self.alive = False

    def wait(self, condition: Callable[[], bool]) -> None:
        with self.told:
            assert self.told.wait_for(condition, SECONDS)


class Caller:
    """An attached process that speaks frame by frame."""

    def __init__(self, address: str, *, stats: bool = False, attach: bool = True) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.settimeout(SECONDS)
        self.socket.connect(address)
        self._unframer = Unframer(ENGINE_LIMIT)
        self._come: list[Any] = []
        if attach:
            self.send(Attach(stats))

    def send(self, *messages: msgspec.Struct) -> None:
        self.socket.sendall(b"".join(map(pack, messages)))

    def receive(self) -> Any:
        """Return the next message; None at the stream's end."""
        while not self._come:
            try:
                data = self.socket.recv(65_536)
            except ConnectionResetError:
                return None
            if not data:
                return None
            self._come += [unpack(FROM_ENGINE, payload) for payload in self._unframer.feed(data)]
        return self._come.pop(0)

    def batch(self) -> Batch:
        message = self.receive()
        assert isinstance(message, Batch)
        return message

    def close(self) -> None:
        self.socket.close()


def submit(number: int, id: str = "r", *, prompt: tuple[int, ...] = (1, 2), tokens: int = 5) -> Submit:
    return Submit(
        *(number, id, prompt, tokens, 0, False, Sampling(), LogprobsMode.RAW, 0, False, 0, None),
        *("owner", "salt", -1),
    )


@contextmanager
def listening() -> Iterator[Address]:
    address = Address()
    try:
        yield address
    finally:
        address.close()


@contextmanager
def recorder(
    core: Recorder | None = None,
    *,
    outbox_bytes: int = OUTBOX_BYTES,
    unread_seconds: float = UNREAD_SECONDS,
) -> Iterator[tuple[EngineServer, Recorder, str]]:
    """Serve a core that says what the test has it say."""
    with listening() as address:
        core = core or Recorder()
        server = EngineServer(address.listening, outbox_bytes=outbox_bytes, unread_seconds=unread_seconds)
        server.start()
        server.ready(core, MODEL)
        try:
            yield server, core, address.path
        finally:
            server.close()


@contextmanager
def fake(**model: Any) -> Iterator[tuple[EngineServer, FakeCore, str]]:
    """Serve a fake core that steps on a thread of its own."""
    with listening() as address:
        core = FakeCore(FakeModel(tokens=TOKENS, eos_token_id=EOS, **{"step_seconds": 0.001, **model}))
        server = EngineServer(address.listening)
        server.start()
        info = core.load(server.progress)
        core.start(server.sink)
        server.ready(core, info)
        try:
            yield server, core, address.path
        finally:
            core.stop()
            server.close()
