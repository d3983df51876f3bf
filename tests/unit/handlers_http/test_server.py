"""How the server takes connections, and its end."""

from __future__ import annotations

import asyncio
import inspect
import json
import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from handlers.app import create_app
from handlers.http.exchange import Exchange, attach
from handlers.http.middleware import TOO_LATE, ErrorBoundary
from handlers.http.protocol import BoundedProtocol
from handlers.http.server import (
    ACCEPTED_TOGETHER,
    Server,
    handles_of,
    listen,
    server_config,
)
from handlers.http.sse import CUT
from handlers.settings.table import Settings
from inference.fakes.core import fake_client
from inference.frontend.client import EngineClient
from inference.types import EngineState
from tests.support import PATIENCE, error_of, make_service

BODY = {"inputs": "Hi", "parameters": {"max_new_tokens": 40}}
LONG = {"inputs": "Hi", "parameters": {"max_new_tokens": 300, "min_new_tokens": 300, "details": True}}


def test_a_burst_of_connections_is_accepted_in_few_turns_of_the_loop() -> None:
    """A probe behind a burst waits for as many turns as the burst takes."""
    uvloop = pytest.importorskip("uvloop")
    burst = 4 * ACCEPTED_TOGETHER

    async def turns_until_all_are_accepted(handles: list[socket.socket]) -> int:
        loop, made, turns = asyncio.get_running_loop(), 0, 0

        class Counted(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                nonlocal made
                made += 1
                transport.close()

        servers = [await loop.create_server(Counted, sock=handle) for handle in handles]
        # the system connects them; the loop, which this call keeps, has yet to accept them
        clients = [socket.create_connection(handles[0].getsockname()) for _ in range(burst)]
        while made < burst:
            await asyncio.sleep(0)
            turns += 1
        for server in servers:
            server.close()
        for client in clients:
            client.close()
        return turns

    listening = listen("127.0.0.1", 0)
    turns = uvloop.run(turns_until_all_are_accepted(handles_of(listening)))
    assert turns <= 2 * burst / ACCEPTED_TOGETHER  # one handle takes as many turns as there are connections


def test_another_worker_that_starts_has_no_worker_wait_in_accept() -> None:
    with listen("127.0.0.1", 0) as listening:
        listening.setblocking(False)  # as a worker's loop does, for all processes that have the socket
        for handle in handles_of(listening):
            assert not os.get_blocking(handle.fileno())
            handle.close()


@dataclass
class Serving:
    """A server on a thread of its own."""

    server: Server
    engine: EngineClient
    thread: threading.Thread
    address: str
    beats: list[None]


@contextmanager
def serving(step_seconds: float, **changes: Any) -> Iterator[Serving]:
    settings = Settings(**changes)
    engine = fake_client(settings.engine_config(), step_seconds=step_seconds)
    app = create_app(make_service(settings, engine), on_loaded=(loaded := threading.Event()).set)
    listening, beats = listen("127.0.0.1", 0), list[None]()
    host, port = listening.getsockname()
    server = Server(server_config(app, settings), engine.drain, lambda: beats.append(None))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    thread.start()
    assert loaded.wait(PATIENCE)
    try:
        yield Serving(server, engine, thread, f"http://{host}:{port}", beats)
    finally:
        server.should_exit = True
        thread.join(PATIENCE)
        assert not thread.is_alive()


def test_while_it_drains_whoever_comes_is_told_so_and_what_runs_ends(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "parley")
    with (
        serving(0.01) as live,
        httpx.Client(base_url=live.address, timeout=PATIENCE) as client,
        client.stream("POST", "/generate_stream", json=LONG) as stream,
    ):
        lines = stream.iter_lines()
        next(lines)
        live.server.handle_exit(signal.SIGTERM, None)
        assert live.server._captured_signals.pop() == signal.SIGTERM  # it would be raised again in the end
        while live.engine.state is EngineState.READY:
            time.sleep(0.005)
        ready = httpx.get(f"{live.address}/readyz", timeout=PATIENCE)
        asked = httpx.post(f"{live.address}/generate", json=BODY, timeout=PATIENCE)
        health, alive = (
            httpx.get(f"{live.address}/{path}", timeout=PATIENCE).status_code for path in ("health", "livez")
        )
        events = [json.loads(line.removeprefix("data:")) for line in lines if line]
    refusal = {"error": "The server shuts down", "error_type": "not_ready"}
    assert (ready.status_code, error_of(ready), ready.headers["retry-after"]) == (503, refusal, "10")
    assert (asked.status_code, error_of(asked), asked.headers["retry-after"]) == (503, refusal, "10")
    assert ready.headers["connection"] == asked.headers["connection"] == "close"
    assert (health, alive) == (503, 200)
    assert events[-1]["details"]["generated_tokens"] == LONG["parameters"]["max_new_tokens"]  # type: ignore[index]
    said = "no more requests are taken; 1 run, and have 90 s to end (--graceful-termination-timeout)"
    assert [each.partition(": ")[2] for each in told_of_the_end(caplog)] == [said]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{live.address}/livez", timeout=PATIENCE)


def test_it_gives_signs_of_life() -> None:
    with serving(0.0) as live:
        deadline = time.monotonic() + PATIENCE
        while len(live.beats) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


@pytest.mark.parametrize(
    "part", [b"GET /health HTTP/1.1\r\nx: ", b"", b'{"inputs"'], ids=["head", "no body", "body"]
)
def test_what_has_not_come_whole_is_told_that_the_server_ends(
    part: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    head = b"POST /generate HTTP/1.1\r\nhost: parley\r\ncontent-type: application/json\r\n"
    with serving(0.0, graceful_termination_timeout=1) as live:
        host, _, port = live.address.removeprefix("http://").partition(":")
        with socket.create_connection((host, int(port)), timeout=PATIENCE) as client:
            client.sendall(part if part[:3] == b"GET" else head + b"content-length: 100\r\n\r\n" + part)
            while not live.server.server_state.connections:
                time.sleep(0.005)
            time.sleep(0.05)  # what was sent is read
            live.server.should_exit = True
            answer = b"".join(iter(lambda: client.recv(65536), b""))
    assert answer.startswith(b"HTTP/1.1 503 ")
    told = json.loads(answer.partition(b"\r\n\r\n")[2])
    assert (told["error"], told["error_type"]) == ("The server shuts down", "not_ready")
    assert b"retry-after: 10" in answer
    assert "Traceback" not in caplog.text
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.mark.parametrize("started", [False, True])
def test_what_the_server_can_not_wait_for_is_cut_off_in_one_line(
    started: bool, caplog: pytest.LogCaptureFixture
) -> None:
    sent, cuts = list[Message](), list[None]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        if started:
            await send({"type": "http.response.start", "status": 200, "headers": []})
        await asyncio.Event().wait()

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError("nothing is received")

    async def run(word: str) -> None:
        scope = {
            "type": "http",
            "path": "/",
            "headers": [],
            "extensions": {CUT: lambda: cuts.append(None)},
        }
        attach(scope, Exchange("the-id", 0.0))
        task = asyncio.create_task(ErrorBoundary(app)(scope, receive, send))
        await asyncio.sleep(0)
        task.cancel(msg=word)
        await task

    asyncio.run(run(TOO_LATE))
    assert sent[0]["status"] == (200 if started else 503)
    assert len(cuts) == started
    assert [record.getMessage() for record in caplog.records] == [
        "request the-id was cut off: the server ends"
    ]
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(run("somebody else's"))
    assert TOO_LATE in inspect.getsource(uvicorn.Server.shutdown)


@pytest.mark.parametrize("seconds", [0, 1])
def test_what_runs_for_too_long_is_told_that_the_server_ends(
    seconds: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "parley")
    with (
        serving(0.5, graceful_termination_timeout=seconds) as live,
        ThreadPoolExecutor(1) as beside,
        httpx.Client(base_url=live.address, timeout=PATIENCE) as client,
        client.stream("POST", "/generate_stream", json=BODY) as stream,
    ):
        server, engine = live.server, live.engine
        lines = stream.iter_lines()
        first = next(lines)
        whole = beside.submit(client.post, "/generate", json=BODY)
        while engine._admission.in_flight < 2:
            time.sleep(0.005)
        server.handle_exit(signal.SIGINT, None)
        while server._told is False:
            time.sleep(0.005)
        server._captured_signals.clear()  # they would be raised again in the end
        events = [json.loads(line.removeprefix("data: ")) for line in (first, *lines) if line]
        answer = whole.result()  # before the client closes its connections
    error = {"error": "Request failed during generation: The server shuts down", "error_type": "generation"}
    assert error_of(stream, events[-1]) == error
    assert all("token" in event for event in events[:-1])
    assert (answer.status_code, error_of(answer)) == (424, error)
    assert told_of_the_end(caplog) == [
        f"SIGINT: no more requests are taken; 2 run, and have {seconds} s to end "
        "(--graceful-termination-timeout)",
        f"SIGINT: 2 requests were cut off after {seconds} s (--graceful-termination-timeout)",
    ]


def told_of_the_end(caplog: pytest.LogCaptureFixture) -> list[str]:
    """Return what the log says of the drain."""
    told = [record.getMessage() for record in caplog.records if record.name == "parley"]
    return [each for each in told if "graceful" in each]


def test_a_connection_whose_request_has_arrived_makes_no_room_for_another() -> None:
    """It may not have been read yet: to close then would cut it off without a word."""

    async def serve() -> None:
        mine, its = socket.socketpair()
        with mine:
            protocol = accepting(answer_hello)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: protocol, its)
            mine.sendall(b"GET / HTTP/1.1\r\nhost: parley\r\n\r\n")
            assert not protocol.leave()
            answer = b""
            while not answer.endswith(b"hello"):  # head and body may come apart
                answer += await asyncio.to_thread(mine.recv, 4096)
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert protocol.leave()
            assert await asyncio.to_thread(mine.recv, 4096) == b""

    asyncio.run(serve())


def accepting(app: ASGIApp) -> BoundedProtocol:
    """Return what serves a connection to an application."""
    config = server_config(app, Settings())
    config.load()
    made: Any = config.http_protocol_class
    protocol: BoundedProtocol = made(config=config, server_state=uvicorn.server.ServerState(), app_state={})
    return protocol


async def answer_hello(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"5")]})
    await send({"type": "http.response.body", "body": b"hello"})
