"""Event streams: their framing, their status, their end, and that they always let go of what they hold."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import pytest
from starlette.types import Message, Scope

from handlers.http.errors import ClientDisconnected, Dialect, Refused
from handlers.http.exchange import Exchange, attach
from handlers.http.sse import EventStream, Feed, event, named_event
from inference.errors import GenerationFailed, IncompleteGeneration


class Source:
    """Events that come as told: bytes are given, exceptions raised, and a gate is waited for."""

    def __init__(self, steps: Sequence[bytes | Exception | asyncio.Event]) -> None:
        self.steps = list(steps)
        self.closed = 0

    def __aiter__(self) -> AsyncIterator[bytes]:
        return self

    async def __anext__(self) -> bytes:
        while self.steps:
            step = self.steps.pop(0)
            if isinstance(step, bytes):
                return step
            if isinstance(step, Exception):
                raise step
            await step.wait()
        raise StopAsyncIteration

    async def aclose(self) -> None:
        self.closed += 1


class Connection:
    """The two ends of one exchange."""

    def __init__(self) -> None:
        self.sent: list[Message] = []
        self.gone = asyncio.Event()
        self.open = asyncio.Event()  # while it isn't set, the client doesn't read
        self.open.set()

    async def receive(self) -> Message:
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        self.sent.append(message)
        await self.open.wait()

    @property
    def body(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def scope(self) -> Scope:
        scope: Scope = {"type": "http"}
        attach(scope, Exchange("id-1", 0.0))
        return scope


class Stream:
    """A stream under test with what it holds."""

    def __init__(self, steps: Sequence[bytes | Exception | asyncio.Event], **options: Any) -> None:
        self.connection = Connection()
        self.source = Source(steps)
        self.released = 0
        self.response: EventStream[Any] = EventStream(self.source, on_close=self.release, **options)

    def release(self) -> None:
        self.released += 1

    async def run(self) -> None:
        connection = self.connection
        await self.response(connection.scope, connection.receive, connection.send)


ONE, TWO, THREE = event({"n": 1}), event({"n": 2}), event({"n": 3})


def test_an_event_is_one_line_of_data_and_an_empty_line() -> None:
    assert (
        event({"text": "a\nb é", "logprob": float("-inf")})
        == b'data: {"text":"a\\nb \xc3\xa9","logprob":null}\n\n'
    )


def test_a_named_event_has_its_type_on_a_line_before() -> None:
    assert named_event({"type": "a.b", "n": 1}) == b'event: a.b\ndata: {"type":"a.b","n":1}\n\n'


def test_a_stream_of_tgi_ends_with_its_last_event() -> None:
    async def check() -> None:
        stream = Stream([ONE, TWO])
        await stream.run()
        assert stream.connection.body == ONE + TWO
        assert stream.connection.sent[-1]["more_body"] is False

    asyncio.run(check())


def test_a_stream_of_openai_ends_with_done() -> None:
    async def check() -> None:
        stream = Stream([ONE], dialect=Dialect.OPENAI)
        await stream.run()
        assert stream.connection.body == ONE + b"data: [DONE]\n\n"

    asyncio.run(check())


def test_the_headers_are_those_of_a_stream() -> None:
    async def check() -> None:
        stream = Stream([ONE], headers={"x-compute-type": "cpu"})
        await stream.run()
        assert dict(stream.connection.sent[0]["headers"]) == {
            b"content-type": b"text/event-stream",
            b"cache-control": b"no-cache",
            b"x-accel-buffering": b"no",
            b"x-compute-type": b"cpu",
        }

    asyncio.run(check())


def test_a_failure_before_the_first_event_is_raised_and_nothing_is_sent() -> None:
    async def check() -> None:
        stream = Stream([Refused("no", status=429)])
        with pytest.raises(Refused):
            await stream.run()
        assert stream.connection.sent == []
        assert stream.released == 1

    asyncio.run(check())


@pytest.mark.parametrize(
    ("dialect", "tail"),
    [
        (
            Dialect.TGI,
            b'data: {"error":"Request failed during generation: bad","error_type":"generation",'
            b'"request_id":"id-1"}\n\n',
        ),
        (
            Dialect.OPENAI,
            b'data: {"error":{"message":"Request failed during generation: bad","type":"server_error",'
            b'"param":null,"code":"generation","http_status_code":424,'
            b'"error_type":"generation","request_id":"id-1"}}\n\ndata: [DONE]\n\n',
        ),
    ],
)
def test_a_failure_after_the_first_event_is_the_last_event(dialect: Dialect, tail: bytes) -> None:
    async def check() -> None:
        stream = Stream([ONE, GenerationFailed("bad")], dialect=dialect)
        await stream.run()
        assert stream.connection.body == ONE + tail
        assert stream.connection.sent[0]["status"] == 200
        assert stream.released == 1

    asyncio.run(check())


def test_whoever_knows_the_answer_so_far_frames_its_failure() -> None:
    async def check() -> None:
        stream = Stream(
            [ONE, GenerationFailed("bad")],
            dialect=Dialect.RESPONSES,
            failed=lambda failure: named_event({"type": "failed", "why": failure.error_type}),
        )
        await stream.run()
        assert (
            stream.connection.body == ONE + b'event: failed\ndata: {"type":"failed","why":"generation"}\n\n'
        )

    asyncio.run(check())


def test_an_incomplete_generation_has_its_own_name_inside_of_a_stream() -> None:
    async def check() -> None:
        stream = Stream([ONE, IncompleteGeneration("x")])
        await stream.run()
        assert b'"error_type":"incomplete_generation_stream"' in stream.connection.body

    asyncio.run(check())


def test_an_unexpected_failure_tells_the_client_only_the_request_id(caplog: pytest.LogCaptureFixture) -> None:
    async def check() -> None:
        stream = Stream([ONE, ZeroDivisionError("/secret/path")])
        await stream.run()
        assert b"secret" not in stream.connection.body
        assert b"id-1" in stream.connection.body

    asyncio.run(check())
    assert "secret" in caplog.text


def test_silence_is_filled_with_comments_before_and_after_the_first_event() -> None:
    async def check() -> None:
        first, second = asyncio.Event(), asyncio.Event()
        stream = Stream([first, ONE, second, TWO])
        stream.response.keep_alive_seconds = 0.01
        running = asyncio.create_task(stream.run())
        await _until(lambda: stream.connection.body == b":\n\n")
        first.set()
        await _until(lambda: stream.connection.body.endswith(ONE + b":\n\n"))
        second.set()
        await running
        assert stream.connection.body.replace(b":\n\n", b"") == ONE + TWO

    asyncio.run(check())


def test_what_piles_up_while_the_client_is_slow_goes_out_in_one_send() -> None:
    async def check() -> None:
        gate = asyncio.Event()
        stream = Stream([ONE, gate, TWO, THREE, ONE, TWO])
        stream.connection.open.clear()
        running = asyncio.create_task(stream.run())
        await _until(lambda: len(stream.connection.sent) == 1)  # the start, which the client doesn't take
        gate.set()
        await _until(lambda: not stream.source.steps)
        stream.connection.open.set()
        await running
        bodies = [message["body"] for message in stream.connection.sent[1:]]
        assert b"".join(bodies) == ONE + TWO + THREE + ONE + TWO
        assert len(bodies) <= 2

    asyncio.run(check())


@pytest.mark.parametrize(
    ("steps", "is_cut"),
    [
        ([b"x" * 500], False),  # it may take as long as it takes: nothing else waits for it
        ([b"x" * 500, b"y" * 100], False),
        ([b"x" * 60, b"y" * 60], False),
        ([b"x" * 60, b"y" * 60, b"z" * 60], True),
        ([b"x" * 500, b"y" * 60, b"z" * 60], True),
    ],
)
def test_a_client_is_too_slow_if_more_waits_for_it_than_may_beside_the_largest_piece(
    steps: list[bytes], is_cut: bool
) -> None:
    async def source(taken: asyncio.Event) -> AsyncIterator[bytes]:
        yield ONE
        await taken.wait()
        for step in steps:
            yield step

    async def check() -> None:
        cuts: list[int] = []
        feed = Feed(source(taken := asyncio.Event()))
        feed.start(60, 100, lambda: cuts.append(1))
        await feed.take()
        taken.set()
        await _until(lambda: feed.ended)
        assert len(cuts) == is_cut
        await feed.aclose()

    asyncio.run(check())


@pytest.mark.parametrize("steps_before", [[], [ONE]], ids=["before the first event", "amid the stream"])
def test_a_client_that_leaves_closes_the_source(steps_before: list[bytes]) -> None:
    async def check() -> None:
        stream = Stream([*steps_before, asyncio.Event()])
        running = asyncio.create_task(stream.run())
        await _until(lambda: len(stream.source.steps) == 0)
        stream.connection.gone.set()
        with pytest.raises(ClientDisconnected):
            await running
        assert stream.source.closed == 1
        assert stream.released == 1

    asyncio.run(check())


def test_a_stream_that_is_cancelled_is_cancelled_and_closed() -> None:
    async def check() -> None:
        stream = Stream([ONE, asyncio.Event()])
        running = asyncio.create_task(stream.run())
        await _until(lambda: len(stream.source.steps) == 0)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert (stream.source.closed, stream.released) == (1, 1)

    asyncio.run(check())


def test_a_stream_that_never_starts_can_be_closed() -> None:
    async def check() -> None:
        stream = Stream([ONE])
        await stream.response.aclose()
        await stream.response.aclose()
        assert stream.released == 1

    asyncio.run(check())


def test_what_it_holds_is_released_even_if_the_source_fails_to_close() -> None:
    class Stuck(Source):
        async def aclose(self) -> None:
            raise OSError("can't close")

    async def check() -> None:
        released: list[bool] = []
        response: EventStream[Any] = EventStream(Stuck([ONE]), on_close=lambda: released.append(True))
        connection = Connection()
        with pytest.raises(OSError, match="can't close"):
            await response(connection.scope, connection.receive, connection.send)
        assert released == [True]

    asyncio.run(check())


async def _until(condition: Any) -> None:
    async with asyncio.timeout(10):
        while not condition():  # noqa: ASYNC110 - what is waited for has no event
            await asyncio.sleep(0.001)
