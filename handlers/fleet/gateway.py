"""The application in front of the replicas: it passes requests on, and answers where no replica can.

A replica that declines (it is full, or its engine is being started again) or is lost before it has said
anything costs its requests nothing: another one is asked. One that is lost later ends them with a failure
each.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from functools import partial

import orjson
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from handlers.fleet.affinity import beginnings
from handlers.fleet.call import Accepted, Answer, Fleet, Piece, head_of
from handlers.fleet.merged import merged
from handlers.http.body import read_body
from handlers.http.disconnect import UntilDisconnect
from handlers.http.errors import Dialect, describe
from handlers.http.exchange import exchange_of
from handlers.http.middleware import TOO_LATE
from handlers.http.replies import text_reply
from handlers.http.sse import DONE, Feed, cut_slow, event
from handlers.settings import Settings
from inference.errors import GenerationFailed, NotReady

ACCEPT_SECONDS = 5.0  # for some replica to take a request; then the client is asked to come again
LOSSES = 2  # replicas that may be lost with a request before it is blamed for it
LOADING_RETRY_SECONDS = 5.0
LOST_RETRY_SECONDS = 10.0
SILENT = 86_400.0  # seconds: it is the replica that sends comments into silence
EVENTS = b"text/event-stream"
FAREWELL_SECONDS = 1.0  # for requests that are ended to say so
# error types that mean: another replica may be able to; of a caller's rate each has its share
DECLINED = ("overloaded", "rate_limited", "not_ready", "healthcheck")

logger = logging.getLogger("parley")


class Gateway:
    """Passes each request on to a replica; its errors are those of `handlers.http.errors`, raised."""

    def __init__(self, settings: Settings, fleet: Fleet | None = None) -> None:
        self.fleet = fleet  # None: not there yet
        self._settings = settings
        self._open: set[asyncio.Task[None]] = set()
        self._draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raises what the error boundary around it turns into a reply."""
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._answer(scope, receive, send)
        finally:
            self._open.discard(task)

    async def drain(self, seconds: float) -> None:
        """Take no more requests, and let those that run end; without time, tell them that they failed."""
        self._draining = True
        if self._open and seconds > 0:
            await asyncio.wait(self._open, timeout=seconds)
        elif self._open:
            for task in self._open:
                task.cancel(TOO_LATE)
            await asyncio.wait(self._open, timeout=FAREWELL_SECONDS)

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._draining:
            raise NotReady("The server shuts down", LOST_RETRY_SECONDS)
        fleet = self.fleet
        if fleet is None or not fleet.populated:
            if scope["path"] != "/livez":
                raise NotReady("The model is loading", LOADING_RETRY_SECONDS)
            await Response()(scope, receive, send)
        elif scope["path"] == "/metrics" and scope["method"] == "GET":
            await text_reply(merged(await fleet.metrics()))(scope, receive, send)
        else:
            settings = self._settings
            body = await read_body(scope, receive, settings.payload_limit, settings.body_timeout)
            async with UntilDisconnect(receive):
                await Relay(fleet, settings, scope, body, send).run()


class Relay:
    """One request on its way through: sent to a replica, or one after another, until one of them answers."""

    def __init__(self, fleet: Fleet, settings: Settings, scope: Scope, body: bytes, send: Send) -> None:
        self._fleet = fleet
        self._buffer_bytes = settings.stream_buffer
        self._scope = scope
        self._send = send
        self._body = body
        self._request_id = exchange_of(scope).request_id
        self._head = head_of(scope, self._request_id)
        self._beginnings = beginnings(body) if settings.prefix_affinity and settings.prefix_caching else ()
        self._asked: list[str] = []
        self._losses = 0
        self._events = False  # the response is a stream of events, and has begun

    async def run(self) -> None:
        """Have the request answered; raises NotReady or GenerationFailed where nothing was sent."""
        answered = False
        while not answered:
            answer = self._fleet.ask(self._head, self._body, self._beginnings, self._asked)
            try:
                answered = await self._pass_on(answer)
            except asyncio.CancelledError as error:
                if error.args == (TOO_LATE,) and self._events:
                    await self._send_body(self._failed(NotReady("The server shuts down", LOST_RETRY_SECONDS)))
                raise
            finally:
                answer.cancel()

    async def _pass_on(self, answer: Answer) -> bool:
        """Send what a replica answers; return whether it does, or another is to be asked."""
        pieces = aiter(answer)
        others = await self._accepted(pieces)
        try:
            first = await _next(pieces)
        except Exception as error:
            self._lose(error)
            return False
        if others and _declines(first):
            return False
        headers = [pair for pair in first.headers or () if pair[0] != b"x-request-id"]  # the edge adds it
        self._events = any(pair[0] == b"content-type" and pair[1].startswith(EVENTS) for pair in headers)
        await self._send({"type": "http.response.start", "status": first.status, "headers": headers})
        await self._send_body(first.body, more=first.more)
        if first.more:
            await self._rest(pieces)
        return True

    async def _accepted(self, pieces: AsyncIterator[Accepted | Piece]) -> bool:
        """Wait for a replica to take the request; return whether it is the first time that it does."""
        try:
            accepted = await asyncio.wait_for(anext(pieces), ACCEPT_SECONDS)
        except TimeoutError:
            raise NotReady("No replica is ready", LOST_RETRY_SECONDS) from None
        assert isinstance(accepted, Accepted)
        known = accepted.replica in self._asked
        self._asked.append(accepted.replica)
        return not known

    async def _rest(self, pieces: AsyncIterator[Accepted | Piece]) -> None:
        """Send what comes after the first piece, and what is the matter if it breaks off."""
        task = asyncio.current_task()
        assert task is not None
        feed = Feed(_bodies(pieces))
        feed.start(SILENT, self._buffer_bytes, partial(cut_slow, self._scope, self._buffer_bytes, task))
        try:
            while not feed.ended:
                body = await feed.take()
                if not feed.ended:
                    await self._send_body(body, more=True)
            last = body + feed.rest()
        finally:
            await feed.aclose()
        if feed.failure is not None:
            self._tell_lost(feed.failure)
            if not self._events:
                raise feed.failure  # the connection is cut: its length says that something is missing
            last += self._failed(GenerationFailed("the replica that computed it was lost"))
        await self._send_body(last)

    async def _send_body(self, body: bytes, *, more: bool = False) -> None:
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    def _lose(self, error: Exception) -> None:
        """Note that a replica was lost before it said anything; raises GenerationFailed if that recurs."""
        self._tell_lost(error)
        self._losses += 1
        if self._losses >= LOSSES:
            raise GenerationFailed("the replicas that computed it were lost") from error

    def _tell_lost(self, error: Exception) -> None:
        logger.error("request %s: its replica was lost: %s", self._request_id, type(error).__name__)

    def _failed(self, error: Exception) -> bytes:
        """Return a stream's one terminal event."""
        dialect = Dialect.OPENAI if self._scope["path"].startswith("/v1/") else Dialect.TGI
        failure = describe(error, self._request_id, streamed=True)
        return event(failure.body(dialect)) + (DONE if dialect is Dialect.OPENAI else b"")


async def _bodies(pieces: AsyncIterator[Accepted | Piece]) -> AsyncIterator[bytes]:
    """Yield what comes after the first piece up to the last; raises EOFError if that is missing."""
    more = True
    while more:
        piece = await _next(pieces)
        more = piece.more
        yield piece.body


async def _next(pieces: AsyncIterator[Accepted | Piece]) -> Piece:
    """Return the next piece; raises EOFError if there is none, as the last one has said that there is."""
    try:
        piece = await anext(pieces)
    except StopAsyncIteration:
        raise EOFError("the answer broke off") from None
    assert isinstance(piece, Piece)
    return piece


def _declines(piece: Piece) -> bool:
    """Return whether a replica says that it can't take a request now, which another may be able to."""
    if piece.status not in (429, 503) or piece.more:
        return False
    try:
        told = orjson.loads(piece.body)
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("error_type") in DECLINED
