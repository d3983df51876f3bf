"""Requests over plain sockets: thousands at a time cost little, and none is sent again behind one's back."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from tests.faults.ledger import NEVER, Answer, End

HOST = "127.0.0.1"
PATIENCE_SECONDS = 60.0  # after which an answer that doesn't come counts as lost
_REFUSALS = {429: End.OVERLOADED, 503: End.UNAVAILABLE}
_LINGER_NOT = struct.pack("ii", 1, 0)  # the connection is reset, not closed


def body(tokens: int, *, prompt: str = "Tell me about the sea.", seed: int | None = None) -> dict[str, Any]:
    """Return a request for exactly so many tokens; some seeds have a fault: see `tests.faults.poison`."""
    parameters: dict[str, Any] = {"max_new_tokens": tokens, "min_new_tokens": tokens, "details": True}
    if seed is not None:
        parameters |= {"do_sample": True, "seed": seed}
    return {"inputs": prompt, "parameters": parameters}


async def ask(
    port: int,
    asked: dict[str, Any],
    *,
    path: str = "/generate_stream",
    leave_after: int | None = None,
    on_event: Callable[[], None] | None = None,
) -> Answer:
    """Send a request and read its answer, or leave after so many events."""
    began = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection(HOST, port, limit=2**20)
    except OSError as error:
        return Answer(End.CLOSED, message=str(error))
    reading = _Reading(reader, began, writer.get_extra_info("sockname")[1], on_event)
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            writer.write(head("POST", path, json.dumps(asked).encode()))
            return await reading.answer(leave_after)
    except TimeoutError:
        return reading.lost(NEVER)
    except OSError as error:
        return reading.lost(f"the connection broke: {error}")
    finally:
        if leave_after is not None and reading.events % 2:
            reset_on_close(writer.get_extra_info("socket"))
        writer.close()


async def get(port: int, path: str) -> tuple[int, bytes, float]:
    """Return status, body and seconds of a GET; status 0 if nobody listens, or its connection breaks."""
    began = time.monotonic()
    try:
        reader, writer = await asyncio.open_connection(HOST, port)
    except OSError:
        return 0, b"", time.monotonic() - began
    try:
        writer.write(head("GET", path))
        answer = await asyncio.wait_for(reader.read(), PATIENCE_SECONDS)
    except OSError:
        answer = b""
    finally:
        writer.close()
    if not answer:
        return 0, b"", time.monotonic() - began
    status, _, rest = answer.partition(b"\r\n")
    return int(status.split()[1]), rest.partition(b"\r\n\r\n")[2], time.monotonic() - began


def head(method: str, path: str, content: bytes = b"") -> bytes:
    """Return a request's bytes."""
    lines = [f"{method} {path} HTTP/1.1", f"host: {HOST}", "connection: close"]
    lines += ["content-type: application/json", f"content-length: {len(content)}"] if content else []
    return "\r\n".join([*lines, "", ""]).encode() + content


def reset_on_close(stream: socket.socket) -> None:
    """Have a connection reset when it is closed, as a client does that dies."""
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)


class _Reading:
    """The answer to one request, as far as it was read."""

    def __init__(
        self, reader: asyncio.StreamReader, began: float, port: int, on_event: Callable[[], None] | None
    ) -> None:
        self._reader = reader
        self._began = began
        self._port = port
        self._on_event = on_event
        self.events = 0
        self._finished = False  # OpenAI's streams say so before their last event
        self._first = 0.0
        self._status = 0

    async def answer(self, leave_after: int | None) -> Answer:
        status_line = await self._reader.readline()
        if not status_line:
            return self.lost("the connection was closed without an answer")
        self._first = time.monotonic() - self._began
        self._status = status = int(status_line.split()[1])
        headers = await self._headers()
        if status != 200 or "event-stream" not in headers.get("content-type", ""):
            return self._whole(status, headers, await self._reader.read())
        async for data in self._data():
            if data == b"[DONE]" and self._finished:
                return self._done(End.FINISHED)
            event = json.loads(data)
            self.events += 1
            if self._on_event is not None:
                self._on_event()
            if "error" in event:
                return self._done(End.FAILED, message=str(event["error"]))
            if event.get("generated_text") is not None:
                return self._done(End.FINISHED, text=event["generated_text"])
            self._finished |= any(each["finish_reason"] for each in event.get("choices", ()))
            if self.events == leave_after:
                return self._done(End.LEFT)
        return self.lost("its stream ended without a last event")

    def lost(self, message: str) -> Answer:
        return self._done(End.LOST, message=message)

    async def _headers(self) -> dict[str, str]:
        headers = {}
        while (line := (await self._reader.readline()).strip()) != b"":
            name, _, value = line.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        return headers

    async def _data(self) -> AsyncIterator[bytes]:
        while line := await self._reader.readline():
            if line.startswith(b"data:"):
                yield line.removeprefix(b"data:").strip()

    def _whole(self, status: int, headers: dict[str, str], content: bytes) -> Answer:
        if int(headers.get("content-length", -1)) != len(content):
            return self.lost(f"{len(content)} bytes of its body came")
        told = json.loads(content)
        if status == 200:
            return self._done(End.FINISHED, text=str(told))
        end = _REFUSALS.get(status, End.FAILED)
        return self._done(end, message=told["error"], retry_after=headers.get("retry-after", ""))

    def _done(self, end: End, *, text: str = "", message: str = "", retry_after: str = "") -> Answer:
        seconds = time.monotonic() - self._began
        return Answer(
            end, text, message, self.events, self._first, seconds, retry_after, self._status, self._port
        )
