"""Request bodies: are they declared as JSON, do they fit the limit, are they JSON."""

from __future__ import annotations

import re
from typing import Any

import orjson
from starlette.types import Receive, Scope

from handlers.http.errors import ClientDisconnected, Refused

JSON_TYPE = re.compile(rb"\s*application/(?:[\w!#$&^.+-]+\+)?json\s*(?:;.*)?", re.IGNORECASE | re.DOTALL)


def require_json(scope: Scope) -> None:
    """Raise 415 unless the body is declared as `application/json` or `application/*+json`."""
    declared = _header(scope, b"content-type")
    if declared == b"application/json":
        return
    if declared is None or JSON_TYPE.fullmatch(declared) is None:
        raise Refused("Expected request with `Content-Type: application/json`", status=415)


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes:
    """Return the body; raise 413 as soon as it is known to be longer than `limit` bytes."""
    declared = _header(scope, b"content-length")
    if declared is not None and (not declared.isdigit() or len(declared) > 18 or int(declared) > limit):
        raise _too_large()
    message = await receive()
    body: bytes = message.get("body", b"")
    if message["type"] == "http.request" and not message.get("more_body", False) and len(body) <= limit:
        return body
    return await _read_on(message, receive, limit)


def parse_json(raw: bytes) -> Any:
    """Parse strict JSON in UTF-8: no NaN, no infinity, no lone surrogate; raise 400 with the position."""
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        reason = str(error) if raw else "EOF while parsing a value at line 1 column 0"
        raise Refused(f"Failed to parse the request body as JSON: {reason}", status=400) from None


async def _read_on(message: Any, receive: Receive, limit: int) -> bytes:
    parts: list[bytes] = []
    size = 0
    while True:
        if message["type"] == "http.disconnect":
            raise ClientDisconnected
        part = message.get("body", b"")
        size += len(part)
        if size > limit:
            raise _too_large()
        parts.append(part)
        if not message.get("more_body", False):
            return b"".join(parts)
        message = await receive()


def _too_large() -> Refused:
    return Refused("Failed to buffer the request body: length limit exceeded", status=413)


def _header(scope: Scope, name: bytes) -> bytes | None:
    for key, value in scope["headers"]:
        if key == name:
            found: bytes = value
            return found
    return None
