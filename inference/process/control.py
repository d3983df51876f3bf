"""The line between the engine's process and the one that spawned it: configuration, log records, the end."""

from __future__ import annotations

import logging
import socket
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import msgspec

from inference.process.framing import Unframer, pack, unpack
from inference.process.messages import CONTROL_LIMIT, MIB, Logged, Message

READ_BYTES = 65_536
LOG = logging.getLogger(__name__)


class Control:
    """One end of the line; read by one thread, written to by any."""

    def __init__(self, stream: socket.socket) -> None:
        self.socket = stream
        self._unframer = Unframer(CONTROL_LIMIT)
        self._lock = threading.Lock()

    def send(self, message: Message) -> bool:
        """Send a message, waiting for room; return false if nobody reads any more."""
        frame = pack(message)
        try:
            with self._lock:
                self.socket.sendall(frame)
        except OSError:
            return False
        return True

    def receive(self, decoder: msgspec.msgpack.Decoder[Any]) -> Iterator[Any]:
        """Yield the messages that come, until the other end is closed; raise FrameFault."""
        while (messages := self.read(decoder)) is not None:
            yield from messages

    def read(self, decoder: msgspec.msgpack.Decoder[Any]) -> list[Any] | None:
        """Return the messages that one read brings; None if the other end is closed."""
        try:
            data = self.socket.recv(READ_BYTES)
        except OSError:
            return None
        if not data:
            return None
        return [unpack(decoder, payload) for payload in self._unframer.feed(data)]

    def close(self) -> None:
        """Close this end."""
        self.socket.close()


class ControlHandler(logging.Handler):
    """Sends log records to the parent, in order and before the call returns: a crash loses none of them."""

    def __init__(self, control: Control) -> None:
        super().__init__()
        self._control = control

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        try:
            self._control.send(to_logged(record))
        except Exception:  # as all handlers do: what is wrong with a record is not its caller's to bear
            self.handleError(record)


class EngineTraceback(Exception):
    """A traceback of the engine's process, as text."""


def to_logged(record: logging.LogRecord) -> Logged:
    """Return a record as it crosses."""
    trace = None
    if record.exc_info and record.exc_info[1] is not None:
        trace = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
    text = record.getMessage()
    most = CONTROL_LIMIT // 8  # of a text whose characters take up to four bytes each
    return Logged(
        record.name,
        record.levelno,
        record.created,
        text[:most],
        trace[:most] if trace is not None else None,
        record.pathname,
        record.lineno,
        record.funcName or "",
        record.threadName or "",
    )


def relay(logged: Logged) -> None:
    """Hand a record of the engine's process to the same logger of this one."""
    record = logging.LogRecord(
        logged.logger, logged.level, logged.path, logged.line, logged.text, None, None, logged.function
    )
    record.created = logged.created
    record.msecs = (logged.created % 1) * 1000
    record.threadName = logged.thread
    record.processName = "engine"
    if logged.trace is not None:
        record.exc_info = (EngineTraceback, EngineTraceback(f"\n{logged.trace}"), None)
    logging.getLogger(logged.logger).handle(record)


def log_levels() -> dict[str, int]:
    """Return the levels of the loggers that have one, "" for the root's."""
    named = logging.root.manager.loggerDict.items()
    levels = {name: each.level for name, each in named if isinstance(each, logging.Logger) and each.level}
    return {"": logging.root.level, **levels}


def send_logs(control: Control, levels: dict[str, int]) -> None:
    """Have all log records of this process sent to its parent."""
    logging.root.handlers = [ControlHandler(control)]
    for name, level in levels.items():
        logging.getLogger(name or None).setLevel(level)
    logging.captureWarnings(True)


def socket_pair() -> tuple[Control, socket.socket]:
    """Return the parent's end, and the child's, with room for a burst of log records."""
    ours, theirs = socket.socketpair()
    theirs.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, MIB)
    return Control(ours), theirs
