"""Server-sent events: framing, and the response that carries them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Mapping
from functools import partial
from typing import Generic, TypeVar

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from handlers.http.disconnect import UntilDisconnect
from handlers.http.errors import Dialect, Failure, settle
from handlers.http.exchange import exchange_of

logger = logging.getLogger("parley.connections")

Body_co = TypeVar("Body_co", covariant=True)

KEEP_ALIVE_SECONDS = 15.0  # until the dispatch puts the setting in its place
BUFFER_BYTES = 4 * 1024 * 1024  # likewise
CUT = "parley.cut"  # the ASGI extension that ends a connection without a word
COMMENT = b":\n\n"
DONE = b"data: [DONE]\n\n"
HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache",
    "x-accel-buffering": "no",  # nginx would hold events back
}


def event(data: object) -> bytes:
    """Frame one event: `data: `, the JSON on one line, an empty line."""
    return b"data: " + orjson.dumps(data) + b"\n\n"


def named_event(data: Mapping[str, object]) -> bytes:
    """Frame one event of those that have names: `event: ` and its type on a line before the data."""
    return b"event: " + str(data["type"]).encode() + b"\n" + event(data)


class EventStream(Response, Generic[Body_co]):
    """A response of events that are sent as they come; `Body_co` is what the contract says an event holds.

    `events` gives framed events (see `event`). The status is sent with the first of them: an exception
    raised before is answered with its own status, one raised after it becomes an error event, which `failed`
    frames if it is given: there the answer so far is part of it. OpenAI's dialect ends with `[DONE]`, which
    this class adds in either case: `events` doesn't give it. After
    `keep_alive_seconds` of silence a comment line is sent; if nothing was sent before, the status goes with
    it, because proxies give up on connections that stay silent. When more than `buffer_bytes` wait for a
    client that is still being sent something, its connection is cut.

    However it ends (finished, failed, refused, client gone, never started), `events` is closed and
    `on_close` called once.
    """

    def __init__(
        self,
        events: AsyncIterator[bytes],
        *,
        dialect: Dialect = Dialect.TGI,
        headers: Mapping[str, str] | None = None,
        on_close: Callable[[], None] | None = None,
        failed: Callable[[Failure], bytes] | None = None,
    ) -> None:
        self.status_code = 200
        self.background = None
        self.dialect = dialect
        self.keep_alive_seconds = KEEP_ALIVE_SECONDS
        self.buffer_bytes = BUFFER_BYTES
        self._feed = Feed(events)
        self._on_close = on_close
        self._failed = failed
        self.init_headers({**(headers or {}), **HEADERS})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the stream; raise what `events` raised before its first event, or ClientDisconnected."""
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        try:
            async with UntilDisconnect(receive):
                last = await self._stream(scope, send)
            await send({"type": "http.response.body", "body": last, "more_body": False})
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close the source and release what `on_close` holds; does nothing the second time."""
        try:
            await self._feed.aclose()
        finally:
            on_close, self._on_close = self._on_close, None
            if on_close is not None:
                on_close()

    async def _stream(self, scope: Scope, send: Send) -> bytes:
        """Send everything but the last bytes, which are returned."""
        self._feed.start(self.keep_alive_seconds, self.buffer_bytes, partial(self._cut, scope))
        started = False
        while True:
            body = await self._feed.take()
            failure = self._feed.failure
            if failure is not None and not body and not started:
                raise failure
            if not started:
                await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
                started = True
            if self._feed.ended:
                return body + self._feed.rest() + self._tail(scope, self._feed.failure)
            await send({"type": "http.response.body", "body": body, "more_body": True})

    def _cut(self, scope: Scope) -> None:
        cut_slow(scope, self.buffer_bytes, self._task)

    def _tail(self, scope: Scope, failure: Exception | None) -> bytes:
        done = DONE if self.dialect is Dialect.OPENAI else b""
        if failure is None:
            return done
        exchange = exchange_of(scope)
        seen = settle(failure, exchange.request_id, streamed=True)
        exchange.error_type, exchange.error = seen.error_type, seen.error
        return (event(seen.body(self.dialect)) if self._failed is None else self._failed(seen)) + done


def cut_slow(scope: Scope, buffer_bytes: int, task: asyncio.Task[None]) -> None:
    """End the connection of a client that reads too slowly, which `task` works for: as if it had left."""
    logger.info(
        "request %s: its client reads too slowly, more than %d bytes wait for it (stream_buffer)",
        exchange_of(scope).request_id,
        buffer_bytes,
    )
    cut: Callable[[], object] = scope.get("extensions", {}).get(CUT, task.cancel)
    cut()


class Feed:
    """Reads a source of events ahead, in a task of its own.

    Whatever has piled up while the client was slow then goes out in one send, and silence can be noticed
    without cancelling the source.
    """

    __slots__ = (
        "_chunks",
        "_largest",
        "_limit",
        "_loop",
        "_overflow",
        "_sending",
        "_silence",
        "_size",
        "_source",
        "_taken",
        "_task",
        "_timer",
        "_waiter",
        "ended",
        "failure",
    )

    def __init__(self, source: AsyncIterator[bytes]) -> None:
        self._source = source
        self._chunks: list[bytes] = []
        self._size = 0  # bytes of them
        self._largest = 0  # bytes of one: whoever reads fast gets it no sooner
        self._sending = False  # what was taken last is still on its way
        self._waiter: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None
        self.ended = False
        self.failure: Exception | None = None

    def start(self, silence: float, limit: int, overflow: Callable[[], None]) -> None:
        """Begin to read; after `silence` seconds in which nothing was taken there is a comment to take.

        `overflow` is called once if more than `limit` bytes pile up behind what was taken before, but for
        the largest chunk.
        """
        self._loop = asyncio.get_running_loop()
        self._limit, self._overflow = limit, overflow
        self._silence = silence
        self._taken = self._loop.time()
        self._timer = self._loop.call_later(silence, self._listen)
        self._task = self._loop.create_task(self._read())

    async def take(self) -> bytes:
        """Return all there is, after waiting for something."""
        self._sending = False
        while not self._chunks and not self.ended:
            self._waiter = self._loop.create_future()
            await self._waiter
        self._sending = True
        self._taken = self._loop.time()
        return self.rest()

    def rest(self) -> bytes:
        """Return what has been read and not been taken yet."""
        chunks = self._chunks
        taken = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        chunks.clear()
        self._size = self._largest = 0
        return taken

    async def aclose(self) -> None:
        """Stop reading and close the source."""
        if self._task is not None:
            self._timer.cancel()
            if not self._task.done():
                self._task.cancel()
                await asyncio.wait([self._task])
        close = getattr(self._source, "aclose", None)
        if close is not None:
            await close()

    async def _read(self) -> None:
        try:
            async for chunk in self._source:
                self._put(chunk)
        except Exception as error:
            self.failure = error
        finally:
            self.ended = True
            self._wake()

    def _listen(self) -> None:
        """Look for silence; one timer for the whole stream costs less than one for each event."""
        due = self._taken + self._silence
        if self._loop.time() >= due:
            due = self._loop.time() + self._silence
            if not self._chunks:  # a client that doesn't read needs no comment
                self._put(COMMENT)
        self._timer = self._loop.call_at(due, self._listen)

    def _put(self, chunk: bytes) -> None:
        self._chunks.append(chunk)
        before = self._size - self._largest
        self._size += len(chunk)
        self._largest = max(self._largest, len(chunk))
        if self._sending and before <= self._limit < self._size - self._largest:
            self._overflow()
        self._wake()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
