"""Reads on for a moment where a request was answered before its body had come and its client asked to close.

To close at once would have the system reset the connection, as bytes are unread: a client that writes all
before it reads, as Python's urllib, would see the reset in place of the answer (RFC 9112, 9.6).
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import TYPE_CHECKING, Any

from handlers.http.answering import AnsweringProtocol

if TYPE_CHECKING:
    from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

SECONDS = 5.0
BYTES = 64 * 1024 * 1024
TOO_SLOW = 408  # whoever was waited for once isn't waited for again


class LingeringProtocol(AnsweringProtocol):
    """Closes a connection once the body that nobody wants has come, too much of it, or time has passed."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._lingering: asyncio.TimerHandle | None = None
        self._discarded = 0  # bytes
        self._waited = False  # in vain, for the body of the present request

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        if self._lingering is not None:
            self._lingering.cancel()
        super().connection_lost(exc)

    @property
    def body_awaited(self) -> bool:
        """Return whether the present request's body is still to come, in part."""
        raise NotImplementedError

    def on_headers_complete(self) -> None:
        """Begin to answer."""
        super().on_headers_complete()
        if not self.cycle.keep_alive:
            self._close_after(self.cycle)

    def on_message_complete(self) -> None:
        """Note that a request has ended: nothing is unread any more."""
        super().on_message_complete()
        if self._lingering is not None:
            if self.cycle.response_complete:
                self._close()
            else:  # its last bytes wait for the client to read; then uvicorn closes
                self.cycle.keep_alive = False

    def discard(self, data: bytes) -> bool:
        """Return whether bytes are those of a body that nobody wants; close if there are too many."""
        if self._lingering is None:
            return False
        self._discarded += len(data)
        if self._discarded > BYTES:
            self._close()
        return True

    def _close_after(self, cycle: RequestResponseCycle) -> None:
        """Have a connection that is to be closed after an answer kept open until its request has come."""
        cycle.send = partial(self._send, cycle, cycle.send)  # type: ignore[method-assign]

    async def _send(self, cycle: RequestResponseCycle, send_on: Any, message: Any) -> None:
        if message["type"] == "http.response.start":
            self._waited = message["status"] == TOO_SLOW
        elif not message.get("more_body", False) and self._may_linger(cycle):
            self._lingering = self.loop.call_later(SECONDS, self._close)
            cycle.keep_alive = True  # the head has said that it isn't, and uvicorn closes where it isn't
        await send_on(message)

    def _may_linger(self, cycle: RequestResponseCycle) -> bool:
        waits = cycle is self.cycle and self.body_awaited and not self._waited
        return waits and self._lingering is None and not self.transport.is_closing()
