"""Reads on for a moment where a request was answered before its body had come and its client asked to close.

To close at once would have the system reset the connection, as bytes are unread: a client that writes all
before it reads, as Python's urllib, would see the reset in place of the answer (RFC 9112, 9.6). Our own side
is closed at once, so that whoever reads to the end of an answer has it.
"""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from functools import partial
from typing import TYPE_CHECKING, Any

from handlers.http.answering import AnsweringProtocol
from handlers.http.errors import ENDING
from handlers.http.parser import Unfit

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
        self._body_comes = True  # as far as is known, without another word from us

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        if self._lingering is not None:
            self._lingering.cancel()
        super().connection_lost(exc)

    @property
    @abstractmethod
    def body_awaited(self) -> bool:
        """Return whether the present request's body is still to come, in part."""

    def on_message_begin(self) -> None:
        """Begin to read a request, but none behind the body that nobody wants; raises Unfit."""
        if self.transport.is_closing():  # the parser reads on where HTTP/1.0 asks to keep the connection
            raise Unfit(ENDING)  # and isn't told: there is nobody to tell
        super().on_message_begin()

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
            # who waits to be told to go on and is refused sends none
            self._body_comes = message["status"] != TOO_SLOW and not cycle.waiting_for_100_continue
        elif not message.get("more_body", False) and self._may_linger(cycle):
            self._lingering = self.loop.call_later(SECONDS, self._close)
            cycle.keep_alive = True  # the head has said that it isn't, and uvicorn closes where it isn't
        await send_on(message)
        if self._lingering is not None and cycle.response_complete:
            self._end_answer()

    def _end_answer(self) -> None:
        """Close our side once all is sent; what the client sends is read on."""
        if not self.transport.is_closing() and self.transport.can_write_eof():
            self.transport.write_eof()

    def _may_linger(self, cycle: RequestResponseCycle) -> bool:
        waits = cycle is self.cycle and self.body_awaited and self._body_comes
        return waits and self._lingering is None and not self.transport.is_closing()
