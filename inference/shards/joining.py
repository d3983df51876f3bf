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
from ipaddress import ip_address
from threading import Thread
from typing import NoReturn

import msgspec

import inference
from inference.environment import child_environment
from inference.ipc.control import Control
from inference.ipc.framing import FrameFault
from inference.ipc.messages import Unavailable
from inference.shards.messages import FROM_JOINING, Join, Own

LOG = logging.getLogger(__name__)

PROGRAM = ("-m", "inference.process.shard")
_VISITORS = 32  # at once, who haven't said yet who they are
_JOIN_SECONDS = 5.0  # for whoever connects to say who it is
_CONNECT_SECONDS = 10.0
_PAUSE_SECONDS = 1.0  # before the first shard is looked for again
_SILENT = ((socket.TCP_KEEPIDLE, 10), (socket.TCP_KEEPINTVL, 5), (socket.TCP_KEEPCNT, 3))  # seconds, times


class Door:
    """A port at which shards of other machines come."""

    def __init__(self, address: str, port: int, count: int, enter: Callable[[Control], None]) -> None:
        """Open it and have so many come in, each by a thread of its own; raise OSError."""
        family = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0][0]
        self._listening = socket.create_server((address, port), family=family)
        if ip_address(self._listening.getsockname()[0]).is_loopback:
            LOG.warning("%s is an address within this machine: shards of other machines can't come", address)
        self._enter = enter
        self._lock = threading.Lock()  # guards the next
        self._left = count  # to come in; 0: it is closed
        self._room = threading.Semaphore(_VISITORS)
        Thread(target=self._open, name="shards-door", daemon=True).start()

    def close(self) -> None:
        """Let nobody in any more."""
        with self._lock:
            self._left = 0
        with suppress(OSError):  # it is closed already
            self._listening.shutdown(socket.SHUT_RDWR)  # by which who waits in `accept` hears of it

    def _open(self) -> None:
        with self._listening:
            while self._left:
                try:
                    stream, _ = self._listening.accept()
                except OSError:  # it is closed, or there are no descriptors for a moment
                    time.sleep(_PAUSE_SECONDS if self._left else 0)
                    continue
                self._room.acquire()
                Thread(target=self._receive, args=(stream,), name="shards-hall", daemon=True).start()

    def _receive(self, stream: socket.socket) -> None:
        try:
            line = _line(stream)
        finally:
            self._room.release()
        if line is None:
            return
        with self._lock:
            welcome, self._left = self._left > 0, max(self._left - 1, 0)
            last = welcome and not self._left
            if welcome:
                self._enter(line)
        if last:
            self.close()
        if not welcome:
            line.close()


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


def be_a_shard(address: str, port: int, own: Own) -> NoReturn:
    """Be there for the first shard at an address, and for its successors, until this process ends.

    `own`: what is otherwise on this machine.
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
                [sys.executable, "-P", *PROGRAM, str(stream.fileno()), msgspec.json.encode(own).decode()],
                stdin=subprocess.DEVNULL,
                pass_fds=(stream.fileno(),),
                env=child_environment(inference),
                check=False,
            ).returncode
        if code:
            LOG.warning("The shard has ended (exit code %d): its log is the first one's", code)
        else:
            LOG.info("The server at %s:%d has ended in order, and the shard with it", address, port)
        time.sleep(_PAUSE_SECONDS)
