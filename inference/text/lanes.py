"""Threads for work on texts: short texts never wait for long ones, and only so many of both wait."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from inference.errors import TextsOverloaded
from inference.machine import usable_cores

LARGE_SIZE = 65_536  # characters, which are worked on for some 100 ms
WAITING_SIZE = 32 * 2**20  # characters of large work that wait: half a minute's, at a million a second
SHORT_TEXTS = 4_096  # that are worked on or wait: far more than ordinary load brings at once
SHORT_TEXTS_SIZE = 64 * 2**20  # their characters
VALUE_SIZE = 16  # of each value in a message, whatever it holds: a template looks at it
MOST_COUNTED = 8_192  # values that are looked at to know a size: the event loop stands still meanwhile
UNCOUNTED_SIZE = 2_000_000  # of what has more of them: as much as a body may hold
RETRY_SECONDS = 5.0

Result = TypeVar("Result")


class Lane:
    """Threads on which large work is taken on in turn; belongs to one event loop."""

    def __init__(self, name: str, threads: int = 1) -> None:
        """`threads` pieces of work are in hand at a time."""
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        # Work that waits for its turn, not in the threads' queue, is dropped when its caller is cancelled
        self._turns = asyncio.Semaphore(threads)
        self._waiting = 0  # characters

    async def run(self, work: Callable[[], Result], size: int) -> Result:
        """Return what `work` on `size` characters returns; raise TextsOverloaded if too many wait already."""
        await self._wait_for_turn(size)
        return await asyncio.wrap_future(self._begin(work))

    def close(self) -> None:
        """Drop what is queued and let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _wait_for_turn(self, size: int) -> None:
        if self._waiting and self._waiting + size > WAITING_SIZE:
            raise TextsOverloaded(
                size, self._waiting, WAITING_SIZE, RETRY_SECONDS, what="characters of large texts"
            )
        self._waiting += size
        try:
            await self._turns.acquire()
        finally:
            self._waiting -= size

    def _begin(self, work: Callable[[], Result]) -> Future[Result]:
        loop = asyncio.get_running_loop()

        def end(_: Future[Result]) -> None:
            if not loop.is_closed():
                loop.call_soon_threadsafe(self._turns.release)

        try:
            working = self._threads.submit(work)
        except RuntimeError:  # closed meanwhile
            self._turns.release()
            raise
        working.add_done_callback(end)  # a caller's cancellation doesn't end the thread's work
        return working


class ShortLane:
    """Threads on which short work is done as it comes; belongs to one event loop."""

    def __init__(self, name: str, threads: int) -> None:
        """`threads` pieces of work are in hand at a time."""
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)
        self._texts = self._size = 0  # that are in hand or wait, whether somebody still wants them or not

    async def run(self, work: Callable[[], Result], size: int) -> Result:
        """Return what `work` on `size` characters returns; raise TextsOverloaded if too many wait already."""
        self._check(size)
        gone = threading.Event()

        def unless_gone() -> Result:
            if gone.is_set():
                raise asyncio.CancelledError
            return work()

        working = asyncio.wrap_future(self._threads.submit(unless_gone))
        self._texts += 1
        self._size += size
        working.add_done_callback(lambda _: self._leave(size))
        try:
            # A cancelled future would stay in the threads' queue, with its text, and count no more
            return await asyncio.shield(working)
        except asyncio.CancelledError:
            gone.set()
            working.add_done_callback(_heard)
            raise

    def close(self) -> None:
        """Drop what is queued and let the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _check(self, size: int) -> None:
        if self._texts >= SHORT_TEXTS:
            raise TextsOverloaded(1, self._texts, SHORT_TEXTS, RETRY_SECONDS, what="short texts")
        if self._size + size > SHORT_TEXTS_SIZE:
            raise TextsOverloaded(
                size, self._size, SHORT_TEXTS_SIZE, RETRY_SECONDS, what="characters of short texts"
            )

    def _leave(self, size: int) -> None:
        self._texts -= 1
        self._size -= size


def _heard(working: asyncio.Future[Any]) -> None:
    """Ask how work ended that nobody waits for: asyncio would log as an error that nobody did."""
    if not working.cancelled():
        working.exception()


class Lanes:
    """Threads for what is short, and a lane for what is large; belongs to one event loop."""

    def __init__(self, workers: int, large: int | None = None) -> None:
        """`large` pieces of large work are in hand at a time: as many as `workers`, if cores are left."""
        self._short = ShortLane("text", workers)
        spare = max(1, min(workers, usable_cores() - 1))  # the tokenizers let go of the interpreter
        self._large = Lane("text-large", spare if large is None else large)

    async def run(self, work: Callable[[], Result], size: int) -> Result:
        """Return what `work` on `size` characters returns; raise TextsOverloaded if too many wait already."""
        if size <= LARGE_SIZE:
            return await self._short.run(work, size)
        return await self._large.run(work, size)

    def close(self) -> None:
        """Drop what is queued and let the threads end."""
        self._short.close()
        self._large.close()


def size_of(*values: object) -> int:
    """Return about how many characters there are in messages, tools, and whatever else is JSON.

    What has more values than can be counted in a moment counts as the largest body there is.
    """
    size, counted, left = 0, 0, list(values)
    while left:
        value = left.pop()
        inner: Iterable[object] = ()
        if isinstance(value, (dict, Mapping)):  # `dict` first, for the sake of speed
            inner = value.values()
        elif isinstance(value, (list, tuple)):
            inner = value
        size += VALUE_SIZE + (len(value) if isinstance(value, str) else 0)
        for item in inner:
            counted += 1
            if counted > MOST_COUNTED:
                return max(size, UNCOUNTED_SIZE)
            if isinstance(item, str):
                size += VALUE_SIZE + len(item)
            else:
                left.append(item)
    return size
