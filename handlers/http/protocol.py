"""uvicorn's httptools protocol with a limit on a request's head, which httptools collects without end."""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

HEAD_LIMIT = 256 * 1024  # bytes; what is longer than HEADER_LIMIT, but not endless, gets a proper 431


class BoundedHeadProtocol(HttpToolsProtocol):
    """Closes a connection whose request line and headers don't come to an end; uvicorn answers 400."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._head_open = True
        self._head_bytes = 0

    def data_received(self, data: bytes) -> None:
        """Take bytes from the socket."""
        super().data_received(data)
        if self._head_open:
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_LIMIT and not self.transport.is_closing():
                self.send_400_response("Request headers too large.")

    def on_message_begin(self) -> None:
        """Note that a request begins."""
        self._head_open = True
        self._head_bytes = 0
        super().on_message_begin()

    def on_headers_complete(self) -> None:
        """Note that its head has ended."""
        self._head_open = False
        super().on_headers_complete()
