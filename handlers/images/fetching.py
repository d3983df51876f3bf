"""Images fetched from other servers, within bounds: of hosts, redirects, bytes."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from functools import cache
from typing import TYPE_CHECKING
from urllib.parse import urljoin

from handlers.images.hosts import UNREACHED, Address, Hosts, NotFetched, to_address
from handlers.version import version

if TYPE_CHECKING:
    import httpcore

    from handlers.images.connecting import Resolve

REDIRECTS = 3
REDIRECTING = (301, 302, 303, 307, 308)
CONNECTIONS = 64  # at a time
# A host may send an image byte by byte, and the event loop pays for each piece of a read in a row
PIECES, PIECE_BYTES = 1024, 256  # so many may be of any size, and the others of so many bytes on average


class Fetcher:
    """Fetches images; belongs to one event loop, and costs nothing before the first one."""

    def __init__(self, hosts: Hosts, most_bytes: int, resolve: Resolve | None = None) -> None:
        """`resolve` looks names up in place of the system's resolver."""
        self._hosts = hosts
        self._most = most_bytes
        self._resolve = resolve
        self._pool: httpcore.AsyncConnectionPool | None = None

    async def fetch(self, url: str, take: Callable[[int], None]) -> bytes:
        """Return what is at an address; raise NotFetched. It takes any time: whoever waits has a limit.

        `take` is called with the number of bytes that come, before they are kept, and may raise.
        """
        address = to_address(url)
        for _ in range(REDIRECTS + 1):
            self._hosts.check(address)
            answer = await self._get(address, take)
            if isinstance(answer, bytes):
                return answer
            address = answer
        raise NotFetched(f"its host redirects more than {REDIRECTS} times")

    async def _get(self, address: Address, take: Callable[[int], None]) -> bytes | Address:
        """Return what an address holds, or where it redirects to."""
        pool = self._pool or await self._opened()
        import httpcore  # not for every server's start; by now a thread has done it

        url = httpcore.URL(
            scheme=address.scheme.encode(),
            host=address.host.encode(),
            port=address.port,
            target=address.target.encode("ascii"),
        )
        try:
            async with pool.stream("GET", url, headers=_headers()) as response:
                _begin(response)
                location = _header(response, b"location")
                if response.status in REDIRECTING and location is not None:
                    return _redirected(address, location)
                return await self._read(response, take)
        except httpcore.ProtocolError as error:
            raise NotFetched("its host doesn't speak HTTP as it should") from error
        except (httpcore.NetworkError, httpcore.TimeoutException) as error:
            raise NotFetched(UNREACHED) from error

    async def _read(self, response: httpcore.Response, take: Callable[[int], None]) -> bytes:
        if response.status != 200:
            raise NotFetched(f"its host answers with the status {response.status}")
        encoding = _header(response, b"content-encoding")
        if encoding is not None and encoding.strip().lower() not in ("", "identity"):
            raise NotFetched("its host compresses it, which wasn't asked for")
        declared = _header(response, b"content-length") or ""
        if declared.isdigit() and len(declared) < 20 and int(declared) > self._most:
            raise TooLarge(int(declared), self._most)
        content = bytearray()  # and no list, in which small pieces would take many times their bytes
        pieces = 0
        stream: AsyncIterator[bytes] = response.aiter_stream()
        async for part in stream:
            size, pieces = len(content) + len(part), pieces + 1
            if size > self._most:
                raise TooLarge(size, self._most)
            if pieces > PIECES + size // PIECE_BYTES:
                raise NotFetched("its host sends it in too many small pieces")
            take(len(part))
            content += part
        return bytes(content)

    async def _opened(self) -> httpcore.AsyncConnectionPool:
        resolve = self._resolve
        pool = await asyncio.to_thread(_pool, self._hosts, resolve)  # imports, and reads certificates
        self._pool = self._pool or pool  # another image's may have come first
        return self._pool


class TooLarge(NotFetched):
    """An image is larger than what is fetched."""

    def __init__(self, size: int, most: int) -> None:
        """In TGI's words."""
        super().__init__(f"Image size {size} bytes exceeds maximum allowed size of {most} bytes")


@cache
def _headers() -> list[tuple[str, str]]:
    return [
        ("accept", "image/*"),
        ("accept-encoding", "identity"),  # a few compressed bytes could be gigabytes
        ("user-agent", f"parley/{version()}"),
    ]


def _pool(hosts: Hosts, resolve: Resolve | None) -> httpcore.AsyncConnectionPool:
    """Return connections that end with their one answer, and know no proxy."""
    import httpcore

    from handlers.images.connecting import Pinned, Resolver

    return httpcore.AsyncConnectionPool(
        ssl_context=httpcore.default_ssl_context(),
        max_connections=CONNECTIONS,
        max_keepalive_connections=0,
        network_backend=Pinned(hosts, resolve or Resolver()),
    )


def _begin(response: httpcore.Response) -> None:
    """Tell an answer's connection that its head has come."""
    from handlers.images.connecting import Sipped

    stream = response.extensions["network_stream"]
    if isinstance(stream, Sipped):  # another one where protocols were switched, which isn't read
        stream.begin()


def _redirected(address: Address, location: str) -> Address:
    try:
        there = to_address(urljoin(address.url, location))
    except ValueError:
        raise NotFetched("its host redirects to what isn't an URL") from None
    if (address.scheme, there.scheme) == ("https", "http"):
        raise NotFetched("its host redirects from https to http")
    return there


def _header(response: httpcore.Response, name: bytes) -> str | None:
    return next((value.decode("latin-1") for key, value in response.headers if key.lower() == name), None)
