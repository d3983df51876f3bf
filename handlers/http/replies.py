"""What operations answer with."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from typing import Generic, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from handlers.http.disconnect import UntilDisconnect
from handlers.http.errors import Dialect, Failure, Refused
from handlers.http.sse import EventStream, event, named_event

__all__ = [
    "Dialect",
    "EventStream",
    "Failure",
    "JsonReply",
    "LongJsonReply",
    "Refused",
    "TextReply",
    "event",
    "json_reply",
    "named_event",
    "text_reply",
]

Body = TypeVar("Body")
Body_co = TypeVar("Body_co", covariant=True)


class JsonReply(Response, Generic[Body_co]):
    """A body as JSON, of the type that the contract has for it."""

    media_type = "application/json"


class LongJsonReply(JsonReply[Body_co]):
    """A body as JSON, too long to be held as a whole: a part is made on a thread when the last one is sent.

    It has no length in its header. A client that leaves ends it.
    """

    def __init__(self, parts: Iterator[bytes], headers: Mapping[str, str] | None = None) -> None:
        """`parts` make up the JSON."""
        self.status_code = 200
        self.background = None
        self._parts = parts
        self.init_headers(headers)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it; raise what `parts` raise, or ClientDisconnected."""
        async with UntilDisconnect(receive):
            part = await self._next()
            await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
            while part:
                await send({"type": "http.response.body", "body": part, "more_body": True})
                part = await self._next()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _next(self) -> bytes:
        return await asyncio.to_thread(next, self._parts, b"")


class TextReply(Response):
    """Plain text in UTF-8."""

    media_type = "text/plain"


def json_reply(body: Body, *, status: int = 200, headers: Mapping[str, str] | None = None) -> JsonReply[Body]:
    """Return `body` as JSON; NaN and infinities become null."""
    return JsonReply(orjson.dumps(body), status, headers)


def text_reply(body: bytes) -> TextReply:
    """Return `body` as plain text."""
    return TextReply(body)
