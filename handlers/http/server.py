"""The HTTP server that the application runs in: uvicorn, on uvloop and httptools where they are installed."""

from __future__ import annotations

import asyncio
import errno
import importlib.util
import logging
import math
import os
import signal
import socket
import time
from collections.abc import Awaitable, Callable
from functools import partial
from types import FrameType
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from handlers.http.signals import Signals
from handlers.serving.open_files import connections_possible
from handlers.settings.row import SettingsError
from handlers.settings.table import Settings

# Longer than load balancers use a connection again (Google's for 600 s); idle ones go where room is short
IDLE_CONNECTION_SECONDS = 620
BACKLOG = 2048
NOBODYS = "127.83.16.9"  # an address of this machine, as all of 127.0.0.0/8, that nobody connects to
ACCEPTED_TOGETHER = 16  # connections, in one turn of the event loop
FAREWELL_SECONDS = 1  # after the draining, for what ended requests have to say

logger = logging.getLogger("parley")

SIGNALLED = 128  # exit codes above it name the signal that cut requests off
PROBE_PATHS = (
    "/",
    "/livez",
    "/readyz",
    "/health",
    "/ping",
    "/metrics",
    "/v2/health/live",
    "/v2/health/ready",
)
TICKS = 10  # a second, of uvicorn's
SPARE_SECONDS = 60  # by which an application waits longer than the server, which counts what it cuts off
DRAINS = "%s: no more requests are taken; %d run, and have %g s to end (--graceful-termination-timeout)"
CUTS_OFF = "%s: %d requests were cut off after %g s (--graceful-termination-timeout)"

Drain = Callable[[float], Awaitable[None]]  # with the seconds that running requests have


def server_config(app: ASGIApp, settings: Settings) -> uvicorn.Config:
    """Return uvicorn's configuration; the port is bound before the model is loaded."""
    return uvicorn.Config(
        app,
        host=settings.hostname,
        port=settings.port,
        loop="uvloop" if importlib.util.find_spec("uvloop") else "asyncio",
        http=_protocol(settings),
        ws="none",
        lifespan="on",  # "auto" would hide errors of the start-up
        interface="asgi3",
        log_config=None,  # the process has configured logging already
        access_log=False,  # `parley.access` has its own, with request ids
        server_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=IDLE_CONNECTION_SECONDS,
        timeout_graceful_shutdown=settings.graceful_termination_timeout,  # `Server` counts on from there
    )


def _always() -> bool:
    return True


def _silent() -> None:
    """Give no sign of life: nobody watches."""


def signal_name(number: int) -> str:
    """Return a signal's name."""
    return signal.Signals(number).name


def _protocol(settings: Settings) -> Any:
    if importlib.util.find_spec("httptools") is None:
        return "h11"  # which limits the head by itself, and nothing else
    from handlers.http.protocol import BoundedProtocol, Bounds
    from handlers.http.room import Room

    aliases = filter(None, [settings.aip_health_route])
    bounds = Bounds(
        connections=min(settings.max_connections, connections_possible()),
        probes=frozenset(path.encode() for path in (*PROBE_PATHS, *aliases)),
        trailer_bytes=settings.header_limit,
        header_seconds=settings.header_timeout,
        body_seconds=settings.body_timeout,
        write_seconds=settings.write_timeout,
    )
    return partial(BoundedProtocol, bounds=bounds, room=Room())


class Server(uvicorn.Server):
    """uvicorn's server, which ends what it serves in order.

    On the first signal nothing more is admitted: the port stays open for those who come, and says 503. What
    runs may end within the graceful time, and then is told that it failed. On the second signal it is told
    at once. uvicorn alone would close the port, and in the end cut off whatever runs, without a word.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        drain: Drain,
        beat: Callable[[], None] = _silent,
        hurries: Callable[[], bool] = _always,
        name: Callable[[int], str] = signal_name,
    ) -> None:
        """`drain` is given the seconds that running requests have, `beat` is called every second.

        `hurries` says whether a signal after the first one means that all is to end at once. `name` is what
        the log calls the end by a signal; "" for one that it doesn't tell.
        """
        super().__init__(config)
        self._patience = float(config.timeout_graceful_shutdown or 0)
        self._drain = drain
        self._beat = beat
        self._hurries = hurries
        self._name = name
        self._signals = Signals()
        self._told = False  # every request that ran has ended, or was told that the server does

    @property
    def cut_off_by(self) -> int | None:
        """Return the signal that has it end at once, None if it ends in order."""
        return self._captured_signals[-1] if self._signals.count > 1 else None

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Take a signal: end, end soon, or end now."""
        if self._signals.count and not self._hurries():
            return
        if not self._signals.take(sig):
            return
        count = self._signals.count
        if count > 2 or (count == 2 and self._told):
            logging.shutdown()  # what waits to be written is, if somebody reads it
            os._exit(SIGNALLED + sig)
        self._captured_signals.append(sig)
        self.should_exit = True

    async def on_tick(self, counter: int) -> bool:
        """Look after what recurs, ten times a second."""
        if counter % TICKS == 0:
            self._beat()
        return await super().on_tick(counter)

    async def _beat_on(self) -> None:
        """Give signs of life while uvicorn waits for responses to end."""
        while True:
            self._beat()
            await asyncio.sleep(1)

    async def main_loop(self) -> None:
        """Serve until a signal, and then until nothing runs any more."""
        await super().main_loop()
        began = time.monotonic()
        self._close_after_answers()
        name = self._name(self._captured_signals[-1]) if self._captured_signals else "The server ends"
        if name:
            logger.info(DRAINS, name, len(self.server_state.tasks), self._patience)
        left_over = await self._let_end(began + self._patience)
        if name and left_over and self._signals.count < 2:  # who interrupts again is told by `shutdown`
            logger.warning(CUTS_OFF, name, left_over, self._patience)
        await self._drain(0.0)
        self._told = True
        left = 0.0 if self._signals.count > 1 else self._patience - (time.monotonic() - began)
        # uvicorn waits so long for responses to end, of other requests, too
        self.config.timeout_graceful_shutdown = math.ceil(max(left, 0.0) + FAREWELL_SECONDS)

    def _close_after_answers(self) -> None:
        """Have every answer from now on close its connection, and say so: clients keep none that is cut."""
        closing = (b"connection", b"close")
        self.config.encoded_headers = [*self.config.encoded_headers, closing]
        self.server_state.default_headers = [*self.server_state.default_headers, closing]

    async def _let_end(self, ends: float) -> int:
        """Wait for what runs, until then or a second signal; return how many requests haven't ended."""
        draining = asyncio.ensure_future(self._drain(self._patience + SPARE_SECONDS))
        counter = 0
        while not draining.done() and self._signals.count < 2 and (left := ends - time.monotonic()) > 0:
            counter += 1
            await self.on_tick(counter)
            await asyncio.wait([draining], timeout=min(left, 1 / TICKS))
        left_over = 0 if draining.done() else len(self.server_state.tasks)
        draining.cancel()
        return left_over

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Close the port and the connections, and have the application end."""
        number = self.cut_off_by
        if number is None:
            beating = asyncio.ensure_future(self._beat_on())
            try:
                await super().shutdown(sockets)
            finally:
                beating.cancel()
            return
        logger.warning("Interrupted again: what still ran was cut off")
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if self.server_state.tasks:
            await asyncio.wait(set(self.server_state.tasks), timeout=FAREWELL_SECONDS)
        logging.shutdown()
        os._exit(SIGNALLED + number)  # whatever else this process has started ends with it


def run(
    app: ASGIApp,
    settings: Settings,
    listening: socket.socket,
    drain: Drain,
    beat: Callable[[], None] = _silent,
    hurries: Callable[[], bool] = _always,
    name: Callable[[int], str] = signal_name,
) -> None:
    """Serve what comes to a socket until SIGINT or SIGTERM, then `drain`, and let running requests end.

    A second signal ends the process, with 128 and the signal's number for its exit code. uvicorn by itself
    listens only after the lifespan has begun, so that a model that loads in no time would be `Connected`
    before.
    """
    server = Server(server_config(app, settings), drain, beat, hurries, name)
    server.run(sockets=handles_of(listening))


def handles_of(listening: socket.socket) -> list[socket.socket]:
    """Return a listening socket as often as connections are to be accepted in one turn of the event loop.

    libuv accepts one for each of its handles and turn (https://github.com/libuv/libuv/pull/3696). In a loop
    that has much to do in each turn, a burst would wait for as many turns as it has connections, and a probe
    behind it: with ten times the clients that there are places for, 0.65 s instead of 0.07.
    """
    # not `listening.dup()`, which makes the socket block, for workers that accept from it, too
    more = (os.dup(listening.fileno()) for _ in range(ACCEPTED_TOGETHER - 1))
    return [listening, *(socket.socket(fileno=descriptor) for descriptor in more)]


def listen(hostname: str, port: int) -> socket.socket:
    """Return a socket that listens; raises SettingsError if it can't be had.

    On `::` it takes what comes by IPv4, too, as TGI's and the metrics port do.
    """
    bound = bind(hostname, port)
    open_port(bound, hostname, port)
    return bound


def bind(hostname: str, port: int) -> socket.socket:
    """Return a socket that has the port, at which nobody can connect yet; raises SettingsError likewise."""
    by_ipv6 = ":" in hostname
    try:
        bound = socket.socket(socket.AF_INET6 if by_ipv6 else socket.AF_INET)
    except OSError as error:
        raise _port_refused(hostname, port, error) from error
    try:
        if by_ipv6:
            alone = not socket.has_dualstack_ipv6()
            bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, alone)
        _bind(bound, (hostname, port))
    except OSError as error:
        bound.close()
        raise _port_refused(hostname, port, error) from error
    return bound


def _bind(bound: socket.socket, address: tuple[str, int]) -> None:
    """Bind a socket for itself alone, or else beside what lingers of a predecessor's connections.

    Until it listens, another one could be bound beside it, too, and only one of them would listen in the end.
    """
    try:
        bound.bind(address)
    except OSError as error:
        if error.errno != errno.EADDRINUSE or _has_every_address(address[1]):
            raise
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)


def _has_every_address(port: int) -> bool:
    """Return whether another socket has the port on every address, which no connection does that lingers."""
    with socket.socket() as alone:
        try:
            alone.bind((NOBODYS, port))
        except OSError as error:
            return error.errno == errno.EADDRINUSE
    return False


def open_port(bound: socket.socket, hostname: str, port: int) -> None:
    """Let connections come, if they can't yet; raises SettingsError if another process did so before."""
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # for what its connections leave behind
        bound.listen(BACKLOG)
    except OSError as error:
        raise _port_refused(hostname, port, error) from error


def _port_refused(hostname: str, port: int, error: OSError) -> SettingsError:
    reason = str(error.strerror).lower()
    return SettingsError(f"`port` {port} can't be bound on {hostname}: {reason}; {_remedy(error)}")


def _remedy(error: OSError) -> str:
    """Return what helps against a port that can't be bound."""
    if error.errno == errno.EADDRINUSE:
        return "end what listens there, or choose another by --port or PORT"
    if error.errno in (errno.EACCES, errno.EPERM):
        return "those under 1024 need the capability CAP_NET_BIND_SERVICE: choose another by --port or PORT"
    return "give an address of this machine by --hostname, 0.0.0.0 for all of them"
