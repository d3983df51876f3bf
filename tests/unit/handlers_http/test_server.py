"""The port that the server listens on, and its end."""

from __future__ import annotations

import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import httpx
import pytest

from handlers.app import create_app
from handlers.http.server import Server, listen, server_config
from handlers.settings import Settings
from handlers.settings_table import SettingsError
from inference.fake import fake_client
from tests.support import PATIENCE, make_service

BODY = {"inputs": "Hi", "parameters": {"max_new_tokens": 40}}


def test_whoever_connects_waits_until_the_server_takes_it() -> None:
    with listen("127.0.0.1", 0) as listening:
        socket.create_connection(listening.getsockname(), timeout=10).close()


@pytest.mark.parametrize(("hostname", "reason"), [("127.0.0.1", "address already in use"), ("192.0.2.1", "")])
def test_a_port_that_can_not_be_had_is_told_with_its_reason(hostname: str, reason: str) -> None:
    with listen("127.0.0.1", 0) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(SettingsError, match=f"`port` {port} can't be bound on {hostname}: {reason}"):
            listen(hostname, port)


def test_what_runs_for_too_long_is_told_that_the_server_ends() -> None:
    settings = Settings(graceful_termination_timeout=0)
    engine = fake_client(settings.engine_config(), step_seconds=0.5)
    app = create_app(make_service(settings, engine), on_loaded=(loaded := threading.Event()).set)
    listening = listen("127.0.0.1", 0)
    host, port = listening.getsockname()
    server = Server(server_config(app, settings), partial(engine.drain, 0))
    serving = threading.Thread(target=server.run, kwargs={"sockets": [listening]}, daemon=True)
    serving.start()
    assert loaded.wait(PATIENCE)
    with (
        ThreadPoolExecutor(1) as beside,
        httpx.Client(base_url=f"http://{host}:{port}", timeout=PATIENCE) as client,
        client.stream("POST", "/generate_stream", json=BODY) as stream,
    ):
        lines = stream.iter_lines()
        first = next(lines)
        whole = beside.submit(client.post, "/generate", json=BODY)
        while engine._admission.in_flight < 2:
            time.sleep(0.005)
        server.should_exit = True
        events = [json.loads(line.removeprefix("data: ")) for line in (first, *lines) if line]
    serving.join(PATIENCE)
    error = {"error": "Request failed during generation: The server shuts down", "error_type": "generation"}
    assert not serving.is_alive()
    assert events[-1] == error
    assert all("token" in event for event in events[:-1])
    assert (whole.result().status_code, whole.result().json()) == (424, error)
