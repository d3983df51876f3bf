"""A client that leaves stops the work done for it."""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.types import Receive

from handlers.http.errors import ClientDisconnected

SOON = 0.02  # seconds; what is done by then isn't worth a task that waits for the client to leave


class UntilDisconnect:
    """Cancel the `async with` block when the client disconnects, and raise ClientDisconnected in its place.

    The request's body must have been read: whatever else comes is thrown away.
    """

    __slots__ = ("_gone", "_receive", "_task", "_timer", "_watch")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._timer = asyncio.get_running_loop().call_later(SOON, self._start)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watch is None:
            return
        self._watch.cancel()
        if not self._gone or self._task.uncancel() > 0:  # if someone else cancels as well, theirs goes on
            return
        raise ClientDisconnected from None

    def _start(self) -> None:
        self._watch = asyncio.get_running_loop().create_task(self._wait())

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()
