"""Connections to the very addresses that were checked, so that a name can't lead elsewhere in between."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Any

import httpcore

from handlers.images.hosts import UNREACHED, Hosts, NotFetched

LOOKUPS = 64  # at a time; the system's resolver can't be told to give up, and holds a thread until it does
SIP = 4096  # bytes that are worked through before the event loop looks at other requests
TRY_SECONDS = 2.0  # for an address, if there are others
HEAD_BYTES = 65_536  # until an answer has begun

Resolve = Callable[[str, int], Awaitable[list[str]]]  # host, port -> addresses, none for an unknown host


class Resolver:
    """Looks names up by the system, on threads that nobody waits for; belongs to one event loop."""

    def __init__(self) -> None:
        self._free = asyncio.Semaphore(LOOKUPS)

    async def __call__(self, host: str, port: int) -> list[str]:
        """Return the addresses of a host, each once."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        found: asyncio.Future[list[str]] = loop.create_future()

        def end(addresses: list[str]) -> None:
            self._free.release()
            if not found.done():  # whoever asked may have gone
                found.set_result(addresses)

        def work() -> None:
            addresses = look_up(host, port)
            with suppress(RuntimeError):  # the loop has been closed
                loop.call_soon_threadsafe(end, addresses)

        # A thread of its own: at the end of the process nobody waits for a slow name server
        threading.Thread(target=work, name="look-up", daemon=True).start()
        return await found


def look_up(host: str, port: int) -> list[str]:
    """Return the addresses of a host, each once; none if it isn't known."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(str(sockaddr[0]) for *_, sockaddr in found))


class Pinned(httpcore.AsyncNetworkBackend):
    """Connects for httpcore, where the hosts allow it; raises NotFetched where they don't."""

    def __init__(self, hosts: Hosts, resolve: Resolve) -> None:
        self._hosts = hosts
        self._resolve = resolve
        self._below = httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Look a host up, check what was found, and connect to that, the first address that answers."""
        failure: Exception | None = None
        addresses = list(self._hosts.allowed(host, port, await self._resolve(host, port)))
        for left, address in zip(reversed(range(len(addresses))), addresses, strict=True):
            patience = TRY_SECONDS if left and timeout is None else timeout  # a packet may go and never come
            try:
                stream = await self._below.connect_tcp(address, port, patience, local_address, socket_options)
                return Sipped(stream)
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                failure = error
        raise NotFetched(UNREACHED) from failure

    async def sleep(self, seconds: float) -> None:
        """Wait."""
        await self._below.sleep(seconds)


class Sipped(httpcore.AsyncNetworkStream):
    """A stream that is read a little at a time, and not for long before the answer begins.

    A host may send thousands of answers in a row that say that the answer is still to come.
    """

    def __init__(self, whole: httpcore.AsyncNetworkStream) -> None:
        self._whole = whole
        self._left = HEAD_BYTES
        self._begun = False

    def begin(self) -> None:
        """Have what comes from now on be read to its end: it is the answer's body."""
        self._begun = True

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        """Return what has come, at most a sip of it; raise NotFetched if the answer doesn't begin."""
        data = await self._whole.read(min(max_bytes, SIP), timeout)
        self._left -= len(data)
        if self._left < 0 and not self._begun:
            raise NotFetched("its host sends too much before its answer")
        return data

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        """Send something."""
        await self._whole.write(buffer, timeout)

    async def aclose(self) -> None:
        """Close it."""
        await self._whole.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        """Return the same over TLS."""
        return Sipped(await self._whole.start_tls(ssl_context, server_hostname, timeout))

    def get_extra_info(self, info: str) -> Any:
        """Return what is known of the connection."""
        return self._whole.get_extra_info(info)
