"""What operations answer with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Generic, TypeVar

import orjson
from starlette.responses import Response

from handlers.http.errors import Dialect, Refused
from handlers.http.sse import EventStream, event

__all__ = ["Dialect", "EventStream", "JsonReply", "Refused", "TextReply", "event", "json_reply", "text_reply"]

Body = TypeVar("Body")
Body_co = TypeVar("Body_co", covariant=True)


class JsonReply(Response, Generic[Body_co]):
    """A body as JSON, of the type that the contract has for it."""

    media_type = "application/json"


class TextReply(Response):
    """Plain text in UTF-8."""

    media_type = "text/plain"


def json_reply(body: Body, *, status: int = 200, headers: Mapping[str, str] | None = None) -> JsonReply[Body]:
    """Return `body` as JSON; NaN and infinities become null."""
    return JsonReply(orjson.dumps(body), status, headers)


def text_reply(body: bytes) -> TextReply:
    """Return `body` as plain text."""
    return TextReply(body)
