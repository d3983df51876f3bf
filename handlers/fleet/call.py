"""A request on its way between the gateway and a replica: its head and body, and the pieces of its answer."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Scope

from handlers.account import DECLINABLE, RECEIVED
from handlers.http.exchange import exchange_of

HEAD = (
    *("http_version", "method", "scheme", "path", "raw_path", "query_string", "root_path"),
    *("client", "server"),
)
LENGTHS = (b"content-length", b"transfer-encoding")

logger = logging.getLogger("parley")

Headers = list[tuple[bytes, bytes]]


@dataclass(frozen=True, slots=True)
class Accepted:
    """The first piece: the replica has the request."""

    replica: str


@dataclass(frozen=True, slots=True)
class Piece:
    """What a replica's application has sent since the piece before."""

    body: bytes
    more: bool
    status: int = 0  # 0: it came with an earlier piece
    headers: Headers | None = None


@dataclass(slots=True)
class Route:
    """What the router is told of a request, in the same process, and what it tells."""

    beginnings: Sequence[bytes] = ()
    avoid: Sequence[str] = ()  # replicas that have declined it, or were lost with it
    chosen: str = ""  # the replica that is asked
    last: bool = False  # there is none but those to avoid and the chosen one
    again: bool = False  # another may be asked, if there is one

    @property
    def declinable(self) -> bool:
        """Return whether another replica is asked if the chosen one declines."""
        return self.again and not self.last


class Answer(Protocol):
    """The pieces of one answer, as they come; raises whatever has become of the replica."""

    def __aiter__(self) -> AsyncIterator[Accepted | Piece]:
        """Return the pieces, `Accepted` first."""

    def cancel(self) -> None:
        """Have the replica end it; nobody reads on."""


class Fleet(Protocol):
    """The replicas, however they are reached."""

    @property
    def populated(self) -> bool:
        """Return whether there has been a replica yet."""

    def ask(self, head: dict[str, Any], body: bytes, route: Route) -> Answer:
        """Have a replica answer a request; one of those to avoid only if there are no others."""

    async def metrics(self) -> dict[str, bytes]:
        """Return the metrics of each replica that says them, by its name."""


def head_of(scope: Scope) -> dict[str, Any]:
    """Return what a replica has to know of a request beside its body, under the id that it has already."""
    headers = [pair for pair in scope["headers"] if pair[0] != b"x-request-id"]
    exchange = exchange_of(scope)
    given = (b"x-request-id", exchange.request_id.encode())
    return {
        **{name: scope[name] for name in HEAD if name in scope},
        "headers": [*headers, given],
        "extensions": {RECEIVED: exchange.received_bytes},
    }


def unread(scope: Scope) -> Scope:
    """Return the scope of a request whose body is too large to be passed on: it says so by its length."""
    length = (b"content-length", str(exchange_of(scope).received_bytes).encode())
    declared = [pair for pair in scope["headers"] if pair[0] == b"content-length"] or [length]
    others = [pair for pair in scope["headers"] if pair[0] not in LENGTHS]
    return {**scope, "headers": [*others, *declared]}


def scope_of(head: dict[str, Any]) -> Scope:
    """Return the scope that a replica's application is called with."""
    version = {"version": "3.0", "spec_version": "2.3"}
    return {"type": "http", "asgi": version, **head, "extensions": dict(head.get("extensions", {}))}


class Call:
    """One request to an application in this process: what it sends comes out in pieces."""

    def __init__(self, app: ASGIApp, head: dict[str, Any], body: bytes, *, declinable: bool = False) -> None:
        """`declinable`: another replica is asked if this one declines, and nothing is counted here then."""
        self._app = app
        self._scope = scope_of(head)
        self._scope["extensions"][DECLINABLE] = declinable
        self._body: bytes | None = body
        self._sent: asyncio.Queue[Message | None] = asyncio.Queue()
        self.gone = asyncio.Event()  # the client has left

    async def run(self) -> None:
        """Call the application; whatever it raises once it has answered ends the pieces early."""
        try:
            await self._app(self._scope, self._receive, self._send)
        except Exception:
            logger.exception("A response broke off")
        finally:
            self._sent.put_nowait(None)

    async def pieces(self) -> AsyncIterator[Piece]:
        """Yield what has been sent, as much of it at once as there is."""
        more = True
        while more:
            message = await self._sent.get()
            status, headers, parts = 0, None, list[bytes]()
            while message is not None:
                if message["type"] == "http.response.start":
                    status, headers = message["status"], [(bytes(k), bytes(v)) for k, v in message["headers"]]
                else:
                    parts.append(message.get("body", b""))
                    more = message.get("more_body", False)
                if self._sent.empty() or not more:
                    break
                message = self._sent.get_nowait()
            if status or parts:
                yield Piece(b"".join(parts), more, status, headers)
            if message is None:
                return

    async def _receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def _send(self, message: Message) -> None:
        self._sent.put_nowait(message)
