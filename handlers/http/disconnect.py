"""A client that leaves stops the work done for it."""

from __future__ import annotations

import asyncio
from types import TracebackType

from starlette.types import Receive

from handlers.http.errors import ClientDisconnected


class UntilDisconnect:
    """Cancel the `async with` block when the client disconnects, and raise ClientDisconnected in its place.

    The request's body must have been read: whatever else comes is thrown away.
    """

    __slots__ = ("_gone", "_receive", "_task", "_watch")

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._gone = False

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._watch = asyncio.get_running_loop().create_task(self._wait())

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._watch.cancel()
        if not self._gone:
            return
        if self._task.uncancel() > 0:  # someone else cancels as well: theirs goes on
            return
        raise ClientDisconnected from None

    async def _wait(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._gone = True
        self._task.cancel()
