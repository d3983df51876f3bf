"""Answers without a length to clients of HTTP/1.0, which knows no chunks: they end with the connection."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle


def end_by_closing(cycle: RequestResponseCycle) -> None:
    """Have an answer that says no length sent as it is (RFC 9112, 6.1 and 6.3), where uvicorn sends chunks.

    Its connection is closed afterwards, as all of HTTP/1.0 are. Called before the request is handled.
    """
    send_on = cycle.send

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            if all(name.lower() != b"content-length" for name, _ in message.get("headers", ())):
                cycle.chunked_encoding = False
                cycle.expected_content_length = sys.maxsize  # bytes that may come
        elif cycle.expected_content_length > sys.maxsize // 2 and not message.get("more_body", False):
            cycle.expected_content_length = len(message.get("body", b""))
        await send_on(message)

    cycle.send = send  # type: ignore[method-assign]
