"""What operations answer with."""

from __future__ import annotations

from collections.abc import Mapping

import orjson
from starlette.responses import Response

from handlers.http.errors import Dialect, Refused
from handlers.http.sse import EventStream, event

__all__ = ["Dialect", "EventStream", "Refused", "event", "json_reply", "text_reply"]


def json_reply(body: object, *, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return `body` as JSON; NaN and infinities become null."""
    return Response(orjson.dumps(body), status, headers, media_type="application/json")


def text_reply(body: bytes) -> Response:
    """Return `body` as plain text in UTF-8."""
    return Response(body, media_type="text/plain")
