"""Threads for work on texts: short texts never wait for long ones, and few long ones wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

from inference.errors import Overloaded

LARGE_SIZE = 65_536  # characters, which are worked on for some 100 ms
WAITING_SIZE = 32 * 2**20  # characters of large work that wait: half a minute's, at a million a second
VALUE_SIZE = 16  # of each value in a message, whatever it holds: a template looks at it
RETRY_SECONDS = 5.0

Result = TypeVar("Result")


class Lanes:
    """Threads for what is short, and one for what is large; belongs to one event loop."""

    def __init__(self, workers: int) -> None:
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="text")
        self._thread_for_large = ThreadPoolExecutor(1, thread_name_prefix="text-large")
        # Work that waits for its turn, not in the thread's queue, is dropped when its caller is cancelled
        self._turn = asyncio.Lock()
        self._waiting = 0  # characters

    async def run(self, work: Callable[[], Result], size: int) -> Result:
        """Return what `work` on `size` characters returns; raise Overloaded if too many wait already."""
        if size <= LARGE_SIZE:
            return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        await self._wait_for_turn(size)
        return await asyncio.wrap_future(self._begin(work))

    def close(self) -> None:
        """Drop what is queued and let the threads end."""
        for threads in (self._threads, self._thread_for_large):
            threads.shutdown(wait=False, cancel_futures=True)

    async def _wait_for_turn(self, size: int) -> None:
        if self._waiting and self._waiting + size > WAITING_SIZE:
            raise Overloaded(RETRY_SECONDS)
        self._waiting += size
        try:
            await self._turn.acquire()
        finally:
            self._waiting -= size

    def _begin(self, work: Callable[[], Result]) -> Future[Result]:
        loop = asyncio.get_running_loop()

        def end(_: Future[Result]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._turn.release)

        try:
            working = self._thread_for_large.submit(work)
        except RuntimeError:  # closed meanwhile
            self._turn.release()
            raise
        working.add_done_callback(end)  # a caller's cancellation doesn't end the thread's work
        return working


def size_of(*values: object) -> int:
    """Return about how many characters there are in messages, tools, and whatever else is JSON."""
    size, left = 0, list(values)
    while left:
        value = left.pop()
        inner: Iterable[object] = ()
        if isinstance(value, (dict, Mapping)):  # `dict` first, for the sake of speed
            inner = value.values()
        elif isinstance(value, (list, tuple)):
            inner = value
        size += VALUE_SIZE + (len(value) if isinstance(value, str) else 0)
        for item in inner:
            if isinstance(item, str):
                size += VALUE_SIZE + len(item)
            else:
                left.append(item)
    return size
