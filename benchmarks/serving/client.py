"""The load client: closed-loop clients of one server, in a process of its own.

    python -m benchmarks.serving.client < JOB > ANSWER     (both JSON; see `Job` and `measure`)

It shares the cores with the server it measures, so it does little: requests are written out before the
clock starts, HTTP is read by hand (a status, chunks, lines), and an event costs a few microseconds. Each
request has a connection of its own, which costs every server the same.
"""

from __future__ import annotations

import asyncio
import gc
import hashlib
import itertools
import sys
import time
from dataclasses import dataclass, field
from typing import Any, cast

import orjson
import uvloop

FAILURES = 3  # after which nothing more is sent


@dataclass(frozen=True, slots=True)
class Job:
    """What to send, and where."""

    port: int
    body: dict[str, Any]  # of each request, less its prompt
    prompts: list[str]
    clients: int
    output: int  # tokens that each answer must have
    timeout: float  # seconds of one request


@dataclass(slots=True)
class Answer:
    """What came back for one request; times are those of the clock."""

    sent: float
    times: list[float] = field(default_factory=list)  # of each piece of text
    silent: list[float] = field(default_factory=list)  # of each event without text
    text: list[str] = field(default_factory=list)
    tokens: int | None = None  # as the server counts them
    prompt_tokens: int | None = None

    def read(self, event: dict[str, Any], now: float) -> None:
        """Take one event of the stream."""
        if "error" in event:
            raise ValueError(f"an error within the stream: {str(event)[:300]}")
        if usage := event.get("usage"):
            self.tokens, self.prompt_tokens = usage["completion_tokens"], usage.get("prompt_tokens")
        for choice in event.get("choices") or ():
            text = choice.get("text")
            (self.times if text else self.silent).append(now)
            self.text.append(text or "")

    def summary(self, began: float) -> dict[str, Any]:
        """Return what is kept of it: seconds since `began`, and a digest of the text."""
        # A random model may write nothing but special tokens, which aren't shown
        times = self.times or self.silent
        return {
            "sent": self.sent - began,
            "first": times[0] - self.sent,
            "last": times[-1] - self.sent,
            "gaps": [later - earlier for earlier, later in itertools.pairwise(times)],
            "tokens": self.tokens if self.tokens is not None else len(times),
            "prompt_tokens": self.prompt_tokens,
            "text": hashlib.sha256("".join(self.text).encode()).hexdigest()[:12],
        }


class Exchange(asyncio.Protocol):
    """One request and its stream."""

    def __init__(self, request: bytes) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.answer = Answer(time.perf_counter())
        self._request = request
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()  # not understood yet
        self._body: ChunkedBody | PlainBody | None = None  # None until the head is complete
        self._lines = bytearray()  # of the body, the last one incomplete
        self._refused = b""  # the status line, if it isn't 200

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Send the request."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's aren't instances of it
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Read what is complete; all of it has come now."""
        now = time.perf_counter()
        self._received += data
        if self._body is None and not self._read_head():
            return
        assert self._body is not None
        self._lines += self._body.take(self._received)
        if self._refused:
            return
        try:
            self._read_events(now)
        except (ValueError, KeyError, TypeError) as error:
            self._end(error)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange, if the last event hasn't."""
        if self._refused:
            self._end(ValueError(f"{self._refused.decode()}: {bytes(self._lines[:300])!r}"))
        some = self.answer.times or self.answer.silent
        self._end(exc or (None if some else ValueError("closed without any text")))

    def close(self) -> None:
        """Close the connection."""
        if self._transport is not None:
            self._transport.close()

    def _read_head(self) -> bool:
        end = self._received.find(b"\r\n\r\n")
        if end < 0:
            return False
        head = bytes(self._received[:end])
        del self._received[: end + 4]
        status = head.split(b"\r\n", 1)[0]
        self._refused = b"" if b" 200" in status else status
        chunked = b"transfer-encoding: chunked" in head.lower()
        self._body = ChunkedBody() if chunked else PlainBody()
        return True

    def _read_events(self, now: float) -> None:
        *complete, rest = self._lines.split(b"\n")
        self._lines = rest
        for line in complete:
            if not line.startswith(b"data:"):
                continue
            data = bytes(line[5:]).strip()
            if data == b"[DONE]":
                self._end(None)
                return
            self.answer.read(orjson.loads(data), now)

    def _end(self, error: Exception | None) -> None:
        if self.ended.done():
            return
        if error is None:
            self.ended.set_result(None)
        else:
            self.ended.set_exception(error)


class PlainBody:
    """A body that ends with the connection."""

    def take(self, received: bytearray) -> bytes:
        """Return the part of the body that has come, and remove it."""
        taken = bytes(received)
        received.clear()
        return taken


class ChunkedBody:
    """A body in chunks, each after a line with its length in hexadecimal digits."""

    def __init__(self) -> None:
        self._left = 0  # bytes of the chunk that haven't come, the line's end after it included

    def take(self, received: bytearray) -> bytes:
        """Return the part of the body that has come, and remove it."""
        taken = bytearray()
        while received:
            if not self._left:
                end = received.find(b"\r\n")
                if end < 0:
                    break
                self._left = int(received[:end].split(b";")[0], 16) + 2
                del received[: end + 2]
            piece = received[: self._left]
            del received[: self._left]
            taken += piece[: max(0, self._left - 2)]  # the last two bytes of it end the line
            self._left -= len(piece)
        return bytes(taken)


async def measure(job: Job) -> dict[str, Any]:
    """Send all requests and return what came back: seconds, answers in the order of sending, failures."""
    waiting = [_request(job, prompt) for prompt in reversed(job.prompts)]
    answers: list[Answer] = []
    failures: list[str] = []
    began, cpu = time.perf_counter(), time.process_time()
    async with asyncio.TaskGroup() as group:
        for _ in range(job.clients):
            group.create_task(_converse(job, waiting, answers, failures))
    wall, cpu = time.perf_counter() - began, time.process_time() - cpu
    kept = [answer.summary(began) for answer in sorted(answers, key=lambda answer: answer.sent)]
    return {"wall": wall, "cpu": cpu, "answers": kept, "failures": failures}


def _request(job: Job, prompt: str) -> bytes:
    content = orjson.dumps({**job.body, "prompt": prompt})
    head = (
        f"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1:{job.port}\r\ncontent-type: application/json\r\n"
        f"accept: */*\r\nconnection: close\r\ncontent-length: {len(content)}\r\n\r\n"
    )
    return head.encode() + content


async def _converse(job: Job, waiting: list[bytes], answers: list[Answer], failures: list[str]) -> None:
    while waiting and len(failures) < FAILURES:
        request = waiting.pop()
        try:
            answer = await _exchange(job, request)
        except (OSError, ValueError, KeyError, TypeError) as error:
            failures.append(f"{type(error).__name__}: {error}"[:400])
            continue
        if answer.tokens is not None and answer.tokens != job.output:
            failures.append(f"{answer.tokens} tokens in place of {job.output}")
            continue
        answers.append(answer)


async def _exchange(job: Job, request: bytes) -> Answer:
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(job.timeout):
        _, exchange = await loop.create_connection(lambda: Exchange(request), "127.0.0.1", job.port)
        try:
            await exchange.ended
        finally:
            exchange.close()
    return exchange.answer


def main() -> None:
    """Read a job, do it, write what came back."""
    job = Job(**orjson.loads(sys.stdin.buffer.read()))
    gc.disable()
    sys.stdout.buffer.write(orjson.dumps(uvloop.run(measure(job))))


if __name__ == "__main__":
    main()
