from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.serving.client import ChunkedBody, Job, measure

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n"
Answer = Callable[[dict[str, Any]], list[bytes]]


def chunked(pieces: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces) + b"0\r\n\r\n"


def events(body: dict[str, Any], tokens: int | None = None) -> bytes:
    count = body["max_tokens"] if tokens is None else tokens
    texts = [{"choices": [{"text": f" {index}"}]} for index in range(count)]
    usage = {"choices": [], "usage": {"completion_tokens": count, "prompt_tokens": 3}}
    return b"".join(b"data: %b\n\n" % orjson.dumps(event) for event in [*texts, usage]) + b"data: [DONE]\n\n"


@asynccontextmanager
async def server(answer: Answer) -> AsyncIterator[int]:
    served: list[asyncio.Task[None]] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0])
        with suppress(ConnectionError):  # the client goes as soon as it knows enough
            for piece in answer(orjson.loads(await reader.readexactly(length))):
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0.001)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        served.append(asyncio.create_task(serve(reader, writer)))

    listening = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield listening.sockets[0].getsockname()[1]
    finally:
        await asyncio.gather(*served)
        listening.close()
        await listening.wait_closed()


def asked(answer: Answer, *, requests: int = 5, clients: int = 2) -> dict[str, Any]:
    async def run() -> dict[str, Any]:
        async with server(answer) as port:
            prompts = [f"prompt {index}" for index in range(requests)]
            return await measure(Job(port, {"max_tokens": 4}, prompts, clients, 4, 10))

    return asyncio.run(run())


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.lists(st.integers(1, 9), min_size=1))
def test_a_chunked_body_is_put_together_however_it_arrives(pieces: list[bytes], sizes: list[int]) -> None:
    sent, body, received, read = chunked(pieces), ChunkedBody(), bytearray(), b""
    while sent:
        size = sizes[len(sent) % len(sizes)]
        received += sent[:size]
        sent = sent[size:]
        read += body.take(received)
    assert b"".join(pieces) == read


def test_each_prompt_is_sent_once_and_its_answer_timed() -> None:
    prompts: list[str] = []

    def answer(body: dict[str, Any]) -> list[bytes]:
        prompts.append(body["prompt"])
        stream = events(body)
        return [HEAD + b"transfer-encoding: chunked\r\n\r\n", chunked([stream[:50], stream[50:]])]

    found = asked(answer)
    assert sorted(prompts) == [f"prompt {index}" for index in range(5)]
    assert found["failures"] == []
    assert [
        (answer["tokens"], answer["prompt_tokens"], len(answer["gaps"])) for answer in found["answers"]
    ] == [(4, 3, 3)] * 5
    assert all(0 < answer["first"] <= answer["last"] <= found["wall"] for answer in found["answers"])
    assert len({answer["text"] for answer in found["answers"]}) == 1


def test_a_body_may_end_with_the_connection() -> None:
    found = asked(
        lambda body: [HEAD + b"\r\n", *(bytes([byte]) for byte in events(body)[:200]), events(body)[200:]]
    )
    assert (found["failures"], len(found["answers"])) == ([], 5)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda body: [HEAD + b"\r\n" + events(body, 3)], "3 tokens in place of 4"),
        (lambda body: [b"HTTP/1.1 429 Too Many\r\n\r\n", b"busy"], "429 Too Many: b'busy'"),
        (lambda body: [HEAD + b'\r\ndata: {"error": "no memory"}\n\n'], "no memory"),
        (lambda body: [HEAD + b"\r\n"], "closed without any text"),
        (lambda body: [HEAD + b"\r\ndata: {oops\n\n"], "JSONDecodeError"),
    ],
)
def test_what_is_not_an_answer_is_a_failure(answer: Answer, message: str) -> None:
    found = asked(answer, requests=1, clients=1)
    assert found["answers"] == []
    assert [message in failure for failure in found["failures"]] == [True]


def test_nothing_more_is_sent_after_some_failures() -> None:
    count = 0

    def answer(body: dict[str, Any]) -> list[bytes]:
        nonlocal count
        count += 1
        return [b"HTTP/1.1 503 Unavailable\r\n\r\n"]

    assert len(asked(answer, requests=20)["failures"]) <= 4
    assert count <= 4
