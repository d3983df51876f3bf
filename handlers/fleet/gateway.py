"""The application in front of the replicas: it passes requests on, and answers where no replica can.

A replica that declines (it is full, or its engine is being started again) or is lost before it has said
anything costs its requests nothing: another one is asked. One that is lost later ends them with a failure
each.
"""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable
from functools import partial

import orjson
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from handlers.account import DECLINED, DECLINING
from handlers.fleet.affinity import beginnings
from handlers.fleet.call import Accepted, Answer, Fleet, Piece, Route, head_of, unread
from handlers.fleet.merged import merged
from handlers.http.auth import knows
from handlers.http.body import read_body
from handlers.http.disconnect import UntilDisconnect
from handlers.http.errors import RESPONSES, Dialect, Refused, describe
from handlers.http.exchange import exchange_of
from handlers.http.message_errors import speaks_messages
from handlers.http.middleware import TOO_LATE
from handlers.http.replies import json_reply, text_reply
from handlers.http.sse import DONE, Feed, cut_slow, event, named_event
from handlers.images.memory import Hold, Memory
from handlers.keys import Keyring
from handlers.metrics.metrics import Metrics
from handlers.settings.table import Settings
from inference.errors import GenerationFailed, NotReady

ACCEPT_SECONDS = 5.0  # for some replica to take a request; then the client is asked to come again
NAME = "gateway"  # in the label `replica`
SEEN = (b"parley_http_", b"parley_log_")  # what the names of its metrics begin with
UP = b"parley_engine_up"  # 0, which it tells where no replica tells its own: alerts wait for it
RELAYED = "parley.relayed"  # an extension of the scope: a replica answers, and tells who wants to know
TOO_LARGE = 413
ASKED = 3  # replicas, of which each may decline: where all are full, more would be work for nothing
LOSSES = 2  # replicas that may be lost with a request before it is blamed for it
LOADING_RETRY_SECONDS = 5.0
LOST_RETRY_SECONDS = 10.0
SILENT = 86_400.0  # seconds: it is the replica that sends comments into silence
EVENTS = b"text/event-stream"
NUMBER = b'"sequence_number":'  # in a text, its quotes would be escaped
FAREWELL_SECONDS = 1.0  # for requests that are ended to say so

Pieces = AsyncIterator[Accepted | Piece]

logger = logging.getLogger("parley")


class Gateway:
    """Passes each request on to a replica; its errors are those of `handlers.http.errors`, raised."""

    def __init__(self, settings: Settings, fleet: Fleet | None = None) -> None:
        self.fleet = fleet  # None: not there yet
        self.metrics = Metrics()  # of what no replica has seen
        self._settings = settings
        self._keys = Keyring(settings.api_key, settings.api_keys_file)
        self._memory = Memory(settings.max_image_memory)
        self._open: set[asyncio.Task[None]] = set()
        self._draining = False
        self._ended = False  # all that runs was told so

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request; raises what the error boundary around it turns into a reply."""
        reply = await self._own(scope)
        if reply is not None:
            await reply(scope, receive, send)
            return
        task = asyncio.current_task()
        assert task is not None
        self._open.add(task)
        try:
            await self._pass_on(scope, receive, send)
        finally:
            self._open.discard(task)

    async def drain(self, seconds: float) -> None:
        """Take no more requests, and let those that run end; without time, tell them that they failed."""
        self._draining = True
        if self._open and seconds > 0:
            await asyncio.wait(self._open, timeout=seconds)
        elif self._open:
            self._ended = True
            for task in self._open:
                task.cancel(TOO_LATE)
            await asyncio.wait(self._open, timeout=FAREWELL_SECONDS)

    async def exposition(self) -> bytes:
        """Return the metrics of all replicas, and of the gateway itself."""
        replicas = {} if self.fleet is None else await self.fleet.metrics()
        return merged({**replicas, NAME: self.own_exposition(alone=not replicas)})

    def own_exposition(self, *, alone: bool = True) -> bytes:
        """Return what the gateway has counted: it has no engine, which it says of itself alone."""
        names = (b"#", *SEEN, UP) if alone else (b"#", *SEEN)
        lines = self.metrics.render().splitlines(keepends=True)
        return b"".join(line for line in lines if line.startswith(names))

    async def _own(self, scope: Scope) -> Response | None:
        """Return what the gateway says of itself, whatever has become of the replicas."""
        if scope["method"] not in ("GET", "HEAD"):
            return None
        if scope["path"] == "/metrics":
            return text_reply(await self.exposition())
        if scope["path"] == "/v2/health/live":
            return json_reply({"live": True})
        return Response() if scope["path"] == "/livez" else None

    async def _pass_on(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._draining:
            raise NotReady("The server shuts down", LOST_RETRY_SECONDS)
        if self.fleet is None or not self.fleet.populated:
            raise NotReady("The model is loading", LOADING_RETRY_SECONDS)
        with self._memory.hold() as hold:
            body = b""
            if scope["method"] == "POST":
                if not knows(self._keys, scope):
                    raise HTTPException(401)
                try:
                    body = await self._read(scope, receive, hold)
                except Refused as error:
                    if error.status != TOO_LARGE:
                        raise
                    # A replica, which knows whether its model sees, says which limit it is
                    return await self._relay(self.fleet, unread(scope), b"", send).run()
            async with UntilDisconnect(receive):
                await self._relay(self.fleet, scope, body, send).run()

    def _relay(self, fleet: Fleet, scope: Scope, body: bytes, send: Send) -> Relay:
        return Relay(fleet, self._settings, scope, body, send, lambda: self._ended)

    async def _read(self, scope: Scope, receive: Receive, hold: Hold) -> bytes:
        """Return a request's body, which may be as large as it may where a model sees: a replica knows."""
        settings = self._settings
        limit = max(settings.payload_limit, settings.image_payload_limit)
        grows = partial(hold.beyond, settings.payload_limit)
        return await read_body(scope, receive, limit, settings.body_timeout, grows)


class Relay:
    """One request on its way through: sent to a replica, or one after another, until one of them answers."""

    def __init__(
        self,
        fleet: Fleet,
        settings: Settings,
        scope: Scope,
        body: bytes,
        send: Send,
        ended: Callable[[], bool],
    ) -> None:
        """`ended` says whether the server has ended, and told all requests so."""
        self._fleet = fleet
        self._ended = ended
        self._buffer_bytes = settings.stream_buffer
        self._scope = scope
        self._send = send
        self._body = body
        self._request_id = exchange_of(scope).request_id
        self._head = head_of(scope)
        self._beginnings = beginnings(body) if settings.prefix_affinity and settings.prefix_caching else ()
        self._asks_all = _limits_callers(settings)
        self._avoid: list[str] = []
        self._losses = 0
        self._events = False  # the response is a stream of events, and has begun
        self._sent = b""  # what has the last event with a number, if events have some

    async def run(self) -> None:
        """Have the request answered; raises NotReady or GenerationFailed where nothing was sent."""
        answered = False
        while not answered:
            again = self._asks_all or len(self._avoid) + 1 < ASKED
            route = Route(self._beginnings, tuple(self._avoid), again=again)
            answer = self._fleet.ask(self._head, self._body, route)
            try:
                answered = await self._pass_on(answer, route)
            except asyncio.CancelledError as error:
                task = asyncio.current_task()
                # Ray raises one of its own in the place of the one that it was cancelled by
                if error.args != (TOO_LATE,) and not self._ended():
                    raise
                if not self._events or task is None:
                    raise asyncio.CancelledError(TOO_LATE) from None
                task.uncancel()
                # The replica tells of a client that has left
                self._scope["extensions"].pop(RELAYED, None)
                await self._send_body(self._failed(NotReady("The server shuts down", LOST_RETRY_SECONDS)))
                return
            finally:
                answer.cancel()

    async def _pass_on(self, answer: Answer, route: Route) -> bool:
        """Send what a replica answers; return whether it does, or another is to be asked."""
        pieces = aiter(answer)
        try:
            async with asyncio.timeout(ACCEPT_SECONDS):
                await _next(pieces)
            first = await _next(pieces)
        except NotReady:
            raise
        except Exception as error:
            if isinstance(error, TimeoutError) and not route.chosen:
                raise NotReady("No replica is ready", LOST_RETRY_SECONDS) from None
            self._lose(error, route)
            return False
        assert isinstance(first, Piece)
        self._avoid.append(route.chosen)
        if route.declinable and _declines(first):
            return False
        self._scope["extensions"][RELAYED] = True
        headers = [pair for pair in first.headers or () if not _is_added_here(*pair)]
        self._events = any(pair[0] == b"content-type" and pair[1].startswith(EVENTS) for pair in headers)
        await self._send({"type": "http.response.start", "status": first.status, "headers": headers})
        await self._send_body(first.body, more=first.more)
        if first.more and self._events:
            await self._rest(pieces)
        elif first.more:
            async for body in _bodies(pieces):  # at the client's pace: such a body may be long
                await self._send_body(body, more=True)
            await self._send_body(b"")
        return True

    async def _rest(self, pieces: Pieces) -> None:
        """Send a stream's events after the first piece, and what is the matter if they break off."""
        task = asyncio.current_task()
        assert task is not None
        feed = Feed(_bodies(pieces))
        feed.start(SILENT, self._buffer_bytes, partial(cut_slow, self._scope, self._buffer_bytes, task))
        try:
            body = await feed.take()
            while not feed.ended:
                await self._send_body(body, more=True)
                body = await feed.take()
            body += feed.rest()
        finally:
            await feed.aclose()
        if feed.failure is not None:
            self._tell_lost(feed.failure)
            del self._scope["extensions"][RELAYED]  # nobody else is left to tell of it
            body += self._failed(GenerationFailed("the replica that computed it was lost"))
        await self._send_body(body)

    async def _send_body(self, body: bytes, *, more: bool = False) -> None:
        if self._scope["path"] == RESPONSES and NUMBER in body:
            self._sent = body
        await self._send({"type": "http.response.body", "body": body, "more_body": more})

    def _lose(self, error: Exception, route: Route) -> None:
        """Note that a replica was lost before it said anything; raises GenerationFailed if that recurs."""
        self._tell_lost(error)
        self._avoid.append(route.chosen)
        self._losses += 1
        if self._losses >= LOSSES and isinstance(error, TimeoutError):
            raise NotReady("No replica is ready", LOST_RETRY_SECONDS) from error
        if self._losses >= LOSSES:
            raise GenerationFailed("the replicas that computed it were lost") from error

    def _tell_lost(self, error: Exception) -> None:
        logger.error("request %s: its replica was lost: %s", self._request_id, type(error).__name__)

    def _failed(self, error: Exception) -> bytes:
        """Return a stream's one terminal event."""
        failure = describe(error, self._request_id, streamed=True)
        exchange = exchange_of(self._scope)
        exchange.error_type, exchange.error = failure.error_type, failure.error
        dialect = dialect_of(self._scope["path"], self._body)
        told = failure.body(dialect)
        if dialect is Dialect.MESSAGES:
            return named_event(told)
        if dialect is Dialect.RESPONSES:
            return named_event({**told, "sequence_number": next_number(self._sent)})
        return event(told) + (DONE if dialect is Dialect.OPENAI else b"")


def dialect_of(path: str, body: bytes) -> Dialect:
    """Return the dialect in which a stream's errors are told: on /invocations the body's shape says it."""
    if path == RESPONSES:
        return Dialect.RESPONSES
    if speaks_messages(path):
        return Dialect.MESSAGES
    openai = path.startswith("/v1/")
    if path == "/invocations":
        try:
            told = orjson.loads(body)
        except ValueError:
            told = None
        openai = isinstance(told, dict) and "inputs" not in told
    return Dialect.OPENAI if openai else Dialect.TGI


def next_number(sent: bytes) -> int:
    """Return the number of the event that follows on those that were sent."""
    found = re.match(rb"\d+", sent.rpartition(NUMBER)[2])
    return 1 + int(found[0]) if found else 0


async def _bodies(pieces: Pieces) -> AsyncIterator[bytes]:
    """Yield what comes after the first piece up to the last; raises EOFError if that is missing."""
    more = True
    while more:
        piece = await _next(pieces)
        assert isinstance(piece, Piece)
        more = piece.more
        yield piece.body


async def _next(pieces: Pieces) -> Accepted | Piece:
    """Return the next piece; raises EOFError if there is none, as the last one has said that there is."""
    try:
        return await anext(pieces)
    except StopAsyncIteration:
        raise EOFError("the answer broke off") from None


def _is_added_here(name: bytes, value: bytes) -> bool:
    """Return whether a header of a replica's answer is one that the gateway's own layers add, as well."""
    cors = name.startswith(b"access-control-") or (name, value) == (b"vary", b"Origin")
    return cors or name in (b"x-request-id", b"request-id")


def _limits_callers(settings: Settings) -> bool:
    """Return whether callers have limits: a replica has its share, others may have more."""
    limits = (
        settings.api_keys_file,
        settings.max_concurrent_requests_per_key,
        settings.requests_per_minute,
        settings.tokens_per_minute,
    )
    return any(limit is not None for limit in limits)


def _declines(piece: Piece) -> bool:
    """Return whether a replica says that it can't take a request now, which another may be able to."""
    if piece.status not in DECLINING or piece.more:
        return False
    try:
        told = orjson.loads(piece.body)
    except ValueError:
        return False
    return isinstance(told, dict) and told.get("error_type") in DECLINED
