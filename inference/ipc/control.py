"""The line between the engine's process and the one that spawned it: configuration, log records, the end."""

from __future__ import annotations

import logging
import select
import socket
import threading
import traceback
from collections.abc import Iterator
from typing import Any

import msgspec

from inference.ipc.framing import Unframer, pack, unpack
from inference.ipc.messages import CONTROL_LIMIT, MIB, Logged, Message
from inference.last_resorts import CarefulHandler
from inference.outline import outline

READ_BYTES = 65_536
PATIENCE_SECONDS = 0.5  # that a log record waits for room; once in vain, the next ones wait no more
LOG = logging.getLogger(__name__)


class Control:
    """One end of the line; read by one thread, written to by any."""

    def __init__(self, stream: socket.socket) -> None:
        self.socket = stream
        self._unframer = Unframer(CONTROL_LIMIT)
        self._lock = threading.Lock()  # guards the next
        self._rest = b""  # of a frame that was begun: it comes before all others
        self._patience = PATIENCE_SECONDS

    def send(self, message: Message) -> bool:
        """Send a message, waiting for room; return false if nobody reads any more."""
        frame = pack(message)
        try:
            with self._lock:
                rest, self._rest = self._rest, b""
                self.socket.sendall(rest + frame)
        except OSError:
            return False
        return True

    def offer(self, message: Message) -> bool:
        """Send a message if there is room within a moment; return false if there is none, or nobody reads."""
        frame = pack(message)
        if not self._lock.acquire(timeout=self._patience):  # somebody waits in `send`
            self._patience = 0.0
            return False
        try:
            self._push()
            if self._rest:
                return False
            self._rest = frame
            self._push()
            begun = len(self._rest) < len(frame)
            self._rest = self._rest if begun else b""
            if not self._rest and begun:
                self._patience = PATIENCE_SECONDS  # it flows
        except OSError:
            return False
        finally:
            self._lock.release()
        return begun

    def _push(self) -> None:
        """Send what is left of a frame as far as there is room, for which the first one waits a moment."""
        while self._rest:
            try:
                sent = self.socket.send(self._rest, socket.MSG_DONTWAIT)
            except BlockingIOError:
                if not self._await_room():
                    return
            else:
                self._rest = self._rest[sent:]

    def _await_room(self) -> bool:
        poll = select.poll()
        poll.register(self.socket, select.POLLOUT)
        found = bool(poll.poll(self._patience * 1000))
        self._patience = PATIENCE_SECONDS if found else 0.0
        return found

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


class ControlHandler(CarefulHandler):
    """Sends log records to the parent, in order and before the call returns: a crash loses none of them.

    A parent that doesn't read, as one that was stopped, is waited for once, and only for a moment; what it
    then misses is counted, and it is told how much that was.
    """

    def __init__(self, control: Control) -> None:
        super().__init__()
        self._control = control
        self._missed = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record."""
        try:
            if self._missed and self._control.offer(to_logged(_missing(self._missed))):
                self._missed = 0
            if not self._control.offer(to_logged(record)):
                self._missed += 1
        except Exception:  # as all handlers do: what is wrong with a record is not its caller's to bear
            self.handleError(record)


def _missing(count: int) -> logging.LogRecord:
    message = "%d log records of the engine were dropped: the server's process did not read them"
    return logging.LogRecord(LOG.name, logging.WARNING, __file__, 0, message, (count,), None)


class EngineTraceback(Exception):
    """A traceback of the engine's process, as text; `outline` is what it is without messages."""

    def __init__(self, trace: str, outline: str | None) -> None:
        super().__init__(trace)
        self.outline = outline


def to_logged(record: logging.LogRecord) -> Logged:
    """Return a record as it crosses."""
    trace = told = None
    if record.exc_info and record.exc_info[1] is not None:
        trace = "".join(traceback.format_exception(record.exc_info[1])).rstrip()
        told = outline(record.exc_info[1])
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
        told[:most] if told is not None else None,
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
        record.exc_info = (EngineTraceback, EngineTraceback(f"\n{logged.trace}", logged.outline), None)
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
