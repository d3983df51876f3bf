"""Streams and long requests through a real socket: their status, their last event, and clients that leave."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import httpx
import pytest
from starlette.responses import Response

from handlers.http.call import Call
from handlers.http.replies import EventStream, event
from handlers.routes.operations import OPERATIONS
from handlers.service import Service
from inference.errors import GenerationFailed, InvalidInput, NotReady, Overloaded, TemplateFailed
from tests.contract.conftest import FAILING
from tests.support import PATIENCE, LiveServer, error_of, live_server

TOKEN = {
    "token": {"id": 1, "text": "a", "logprob": -0.5, "special": False},
    "generated_text": None,
    "details": None,
}
CHAT = {"messages": [{"role": "user", "content": FAILING}], "stream": True, "temperature": 0}


class Script:
    """What the operations of the test server do next, and what became of them."""

    def __init__(self) -> None:
        self.failure: Exception | None = None
        self.begun = threading.Event()
        self.ended: list[str] = []

    async def events(self) -> AsyncIterator[bytes]:
        """Fail as told, or give one event and then wait for ever."""
        try:
            if self.failure is not None:
                raise self.failure
            yield event({"index": 1, **TOKEN})
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            self.ended.append("source")

    async def generate_stream(self, service: Service, call: Call[Any]) -> Response:
        """Stream."""
        return EventStream(self.events(), on_close=lambda: self.ended.append("stream"))

    async def generate(self, service: Service, call: Call[Any]) -> Response:
        """Wait for ever."""
        try:
            self.begun.set()
            await asyncio.Event().wait()
        finally:
            self.ended.append("request")
        raise AssertionError


@pytest.fixture(scope="module")
def script() -> Script:
    """Give the script of the module's server."""
    return Script()


@pytest.fixture(scope="module")
def scripted(script: Script) -> Iterator[LiveServer]:
    """Serve with two operations that follow the script."""
    operations = {**OPERATIONS, "generate": script.generate, "generate_stream": script.generate_stream}
    with live_server(operations=operations) as live:
        yield live


@pytest.fixture(autouse=True)
def _fresh(script: Script) -> None:
    script.failure = None
    script.begun.clear()
    script.ended.clear()


def until(condition: Callable[[], bool]) -> None:
    """Wait until something has happened in the server."""
    deadline = time.monotonic() + PATIENCE
    while not condition():
        assert time.monotonic() < deadline, "it didn't happen"
        time.sleep(0.005)


def connect(server: LiveServer, path: str) -> socket.socket:
    """Send a small request and return the connection."""
    body = b'{"inputs": "Hi"}'
    connection = socket.create_connection((server.host, server.port), timeout=PATIENCE)
    head = ["content-type: application/json", f"content-length: {len(body)}", "", ""]
    connection.sendall("\r\n".join([f"POST {path} HTTP/1.1", "host: x", *head]).encode() + body)
    return connection


@pytest.mark.parametrize(
    ("failure", "status", "error_type"),
    [
        (InvalidInput("`x`"), 422, "validation"),
        (TemplateFailed("y"), 422, "template_error"),
        (GenerationFailed("z"), 424, "generation"),
        (Overloaded(0.2), 429, "overloaded"),
        (ZeroDivisionError(), 500, "internal"),
        (NotReady("The model is loading", 2.5), 503, "not_ready"),
    ],
)
def test_a_failure_before_the_first_event_has_its_own_status(
    scripted: LiveServer, script: Script, failure: Exception, status: int, error_type: str
) -> None:
    script.failure = failure
    answer = scripted.post("/generate_stream", {"inputs": "Hi"})
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["error_type"] == error_type
    assert ("retry-after" in answer.headers) == (status in (429, 503))
    assert int(answer.headers.get("retry-after", 1)) >= 1
    until(lambda: sorted(script.ended) == ["source", "stream"])


def test_a_client_that_leaves_ends_the_stream_and_frees_what_it_held(
    scripted: LiveServer, script: Script
) -> None:
    with connect(scripted, "/generate_stream") as connection:
        assert connection.recv(65536).startswith(b"HTTP/1.1 200 OK")
        assert script.begun.wait(PATIENCE)
    until(lambda: sorted(script.ended) == ["source", "stream"])


def test_a_client_that_leaves_cancels_a_request_that_is_not_streamed(
    scripted: LiveServer, script: Script
) -> None:
    with connect(scripted, "/generate"):
        assert script.begun.wait(PATIENCE)
    until(lambda: script.ended == ["request"])


def test_a_request_whose_body_never_comes_does_not_reach_its_operation(
    scripted: LiveServer, script: Script
) -> None:
    with socket.create_connection((scripted.host, scripted.port), timeout=PATIENCE) as connection:
        connection.sendall(
            b"POST /generate HTTP/1.1\r\nhost: x\r\n"
            b"content-type: application/json\r\ncontent-length: 50\r\n\r\n{"
        )
    answer = scripted.get("/health")
    assert answer.status_code == 200
    assert not script.begun.is_set()


def test_a_silent_stream_is_kept_alive_as_often_as_the_setting_says(script: Script) -> None:
    operations = {**OPERATIONS, "generate_stream": script.generate_stream}
    with (
        live_server(operations=operations, keep_alive_seconds=1) as live,
        live.client() as client,
        client.stream("POST", "/generate_stream", json={"inputs": "Hi"}) as answer,
    ):
        lines = answer.iter_lines()
        assert next(lines).startswith("data: ")
        assert [next(lines), next(lines)] == ["", ":"]


def test_tgi_streams_end_with_an_error_event_after_a_failure(client: httpx.Client) -> None:
    answer = client.post("/generate_stream", json={"inputs": FAILING})
    assert answer.status_code == 200
    *tokens, failure = [json.loads(line[6:]) for line in answer.text.split("\n\n") if line]
    assert [token["index"] for token in tokens] == [1, 2]
    failure = error_of(answer, failure)
    assert failure["error"].startswith("Request failed during generation: ")
    assert failure["error_type"] == "generation"


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", CHAT),
        ("/v1/completions", {"prompt": FAILING, "stream": True}),
        ("/invocations", CHAT),
    ],
)
def test_openai_streams_end_with_an_error_event_and_done_after_a_failure(
    client: httpx.Client, path: str, body: object
) -> None:
    answer = client.post(path, json=body)
    assert answer.status_code == 200
    *_, failure, done, rest = answer.text.split("\n\n")
    told = error_of(answer, json.loads(failure[6:])["error"])
    assert (told["http_status_code"], told["error_type"]) == (424, "generation")
    assert (done, rest) == ("data: [DONE]", "")


def test_a_failed_request_that_is_not_streamed_is_424(client: httpx.Client) -> None:
    answer = client.post("/generate", json={"inputs": FAILING})
    assert answer.status_code == 424
    assert answer.json()["error_type"] == "generation"


def test_one_request_too_many_is_429_until_another_has_ended() -> None:
    with live_server(max_concurrent_requests=1) as live, live.client() as client:
        permit = live.service.engine.admit()
        refused = client.post("/generate_stream", json={"inputs": "Hi"})
        assert refused.status_code == 429
        assert error_of(refused) == {"error": "Model is overloaded", "error_type": "overloaded"}
        assert int(refused.headers["retry-after"]) >= 1
        permit.release()
        for _ in range(3):  # each stream gives its place back
            assert client.post("/generate_stream", json={"inputs": "Hi"}).status_code == 200
