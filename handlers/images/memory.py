"""How many bytes of images, and of the large bodies that bring them, requests in flight hold together."""

from __future__ import annotations

import asyncio
from types import TracebackType

from inference.errors import ImagesOverloaded

RETRY_SECONDS = 5.0
SIDE_BY_SIDE = 4  # images of one request that are fetched at a time, so that none takes all connections


class Memory:
    """What one process may hold; belongs to one event loop."""

    def __init__(self, most: int) -> None:
        self._most = most
        self.held = 0

    def hold(self, size: int = 0) -> Hold:
        """Return a part of it, given back at the end of the block; raise ImagesOverloaded if none is left."""
        hold = Hold(self)
        hold.more(size)
        return hold

    def _take(self, size: int) -> None:
        # What is too large for all of it is let in alone: its own limits bound it. Nothing is never too much
        if size and self.held and self.held + size > self._most:
            raise ImagesOverloaded(size, self.held, self._most, RETRY_SECONDS)
        self.held += size


class Hold:
    """What one request holds."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._size = 0
        self._body = 0  # bytes of it that are the body's
        # Of all parts of a body that are worked on by themselves
        self.images = 0  # taken in so far,
        self.image_bytes = 0  # with these bytes
        self.turns = asyncio.Semaphore(SIDE_BY_SIDE)  # to fetch one
        self.deadline: float | None = None  # of the event loop's time, once one is fetched

    def __enter__(self) -> Hold:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def more(self, size: int) -> None:
        """Hold so much more; raise ImagesOverloaded if that is too much."""
        self._memory._take(size)
        self._size += size

    def beyond(self, limit: int, size: int) -> None:
        """Hold a body that has grown to so many bytes, if it is past a limit; raise ImagesOverloaded."""
        if size > limit and size > self._body:
            self.more(size - self._body)
            self._body = size

    def close(self) -> None:
        """Give all of it back."""
        self._memory.held -= self._size
        self._size = 0
