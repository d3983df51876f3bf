"""The port that the server listens on, and its end."""

from __future__ import annotations

import json
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

from handlers.app import create_app
from handlers.http.server import Server, listen, server_config
from handlers.settings import Settings
from handlers.settings_table import SettingsError
from inference.client import EngineClient
from inference.fake import fake_client
from inference.types import EngineState
from tests.support import PATIENCE, error_of, make_service

BODY = {"inputs": "Hi", "parameters": {"max_new_tokens": 40}}
LONG = {"inputs": "Hi", "parameters": {"max_new_tokens": 300, "min_new_tokens": 300, "details": True}}


def test_whoever_connects_waits_until_the_server_takes_it() -> None:
    with listen("127.0.0.1", 0) as listening:
        socket.create_connection(listening.getsockname(), timeout=10).close()


@pytest.mark.parametrize(("hostname", "reason"), [("127.0.0.1", "address already in use"), ("192.0.2.1", "")])
def test_a_port_that_can_not_be_had_is_told_with_its_reason(hostname: str, reason: str) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"`port` {port} can't be bound on {hostname}: {reason}"):
            listen(hostname, port)


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


def test_while_it_drains_whoever_comes_is_told_so_and_what_runs_ends() -> None:
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
        ready = httpx.get(f"{live.address}/readyz")
        asked = httpx.post(f"{live.address}/generate", json=BODY)
        health, alive = (httpx.get(f"{live.address}/{path}").status_code for path in ("health", "livez"))
        events = [json.loads(line.removeprefix("data:")) for line in lines if line]
    refusal = {"error": "The server shuts down", "error_type": "not_ready"}
    assert (ready.status_code, error_of(ready), ready.headers["retry-after"]) == (503, refusal, "10")
    assert (asked.status_code, error_of(asked), asked.headers["retry-after"]) == (503, refusal, "10")
    assert (health, alive) == (503, 200)
    assert events[-1]["details"]["generated_tokens"] == LONG["parameters"]["max_new_tokens"]  # type: ignore[index]
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{live.address}/livez")


def test_it_gives_signs_of_life() -> None:
    with serving(0.0) as live:
        deadline = time.monotonic() + PATIENCE
        while len(live.beats) < 2:
            assert time.monotonic() < deadline
            time.sleep(0.01)


def test_what_runs_for_too_long_is_told_that_the_server_ends() -> None:
    with (
        serving(0.5, graceful_termination_timeout=0) as live,
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
        server.should_exit = True
        events = [json.loads(line.removeprefix("data: ")) for line in (first, *lines) if line]
        answer = whole.result()  # before the client closes its connections
    error = {"error": "Request failed during generation: The server shuts down", "error_type": "generation"}
    assert error_of(stream, events[-1]) == error
    assert all("token" in event for event in events[:-1])
    assert (answer.status_code, error_of(answer)) == (424, error)
