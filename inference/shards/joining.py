"""Shards of other machines: how they come to the first one, and how they are there for it."""

from __future__ import annotations

import logging
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from importlib.metadata import version
from typing import NoReturn

import inference
from inference.environment import child_environment
from inference.process.control import Control
from inference.process.framing import FrameFault
from inference.process.messages import Unavailable
from inference.shards.messages import FROM_JOINING, Join

LOG = logging.getLogger(__name__)

PROGRAM = ("-m", "inference.shards")
_JOIN_SECONDS = 5.0  # for whoever connects to say who it is
_CONNECT_SECONDS = 10.0
_PAUSE_SECONDS = 1.0  # before the first shard is looked for again
_SILENT = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))  # seconds, times


class Door:
    """A port at which shards of other machines come."""

    def __init__(self, address: str, port: int) -> None:
        """Open it; raise OSError."""
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        self._listening = socket.create_server((address, port), family=family)

    def welcome(self, count: int, enter: Callable[[Control], None]) -> None:
        """Have so many come in from now on, by a thread; then the door is closed."""
        threading.Thread(target=self._welcome, args=(count, enter), name="shards-door", daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more."""
        with self._listening, suppress(OSError):  # it is closed already
            self._listening.shutdown(socket.SHUT_RDWR)  # by which who waits in `accept` hears of it

    def _welcome(self, count: int, enter: Callable[[Control], None]) -> None:
        with self._listening:
            while count:
                try:
                    stream, _ = self._listening.accept()
                except OSError:  # it was closed
                    return
                line = _line(stream)
                if line is not None:
                    count -= 1
                    enter(line)


def _line(stream: socket.socket) -> Control | None:
    """Return the line to a shard that has come; None if it is something else, which is told and sent away."""
    line = Control(stream)
    stream.settimeout(_JOIN_SECONDS)
    try:
        said = line.read(FROM_JOINING)
    except FrameFault:
        said = None
    if not said:
        LOG.warning("Something that is no shard has connected to the port of shards, and was sent away")
    elif said[0].version != version("parley"):
        own = version("parley")
        LOG.warning("A shard of version %.20s was sent away: this is %s", said[0].version, own)
        line.send(Unavailable(f"it is of version {said[0].version}, and the first shard of {own}"))
    else:
        stream.settimeout(None)
        keep_alive(stream)
        return line
    line.close()
    return None


def keep_alive(stream: socket.socket) -> None:
    """Have a connection end about half a minute after the other machine has fallen silent."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in _SILENT:
        stream.setsockopt(socket.IPPROTO_TCP, option, value)


def be_a_shard(address: str, port: int, model_id: str | None) -> NoReturn:
    """Be there for the first shard at an address, and for its successors, until this process ends.

    `model_id`: where the model is on this machine, if that is elsewhere than on the first shard's.
    """
    waiting = False
    while True:
        try:
            stream = socket.create_connection((address, port), _CONNECT_SECONDS)
        except OSError as error:
            if not waiting:
                LOG.info("Waiting for the first shard at %s:%d (%s)", address, port, error)
            waiting = True
            time.sleep(_PAUSE_SECONDS)
            continue
        waiting = False
        LOG.info("The first shard is at %s:%d", address, port)
        with stream:
            stream.settimeout(None)
            keep_alive(stream)
            Control(stream).send(Join(version("parley")))
            code = subprocess.run(
                [sys.executable, "-P", *PROGRAM, str(stream.fileno()), *filter(None, (model_id,))],
                stdin=subprocess.DEVNULL,
                pass_fds=(stream.fileno(),),
                env=child_environment(inference),
                check=False,
            ).returncode
        LOG.warning("The shard has ended (exit code %d): its log is the first one's", code)
        time.sleep(_PAUSE_SECONDS)
