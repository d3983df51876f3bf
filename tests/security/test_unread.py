"""Clients that don't read the end of an answer, or send more than one request before they leave."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest

from handlers.http import server as server_module
from handlers.http.answering import AnsweringProtocol
from handlers.service import Service
from inference.fakes.core import fake_client
from tests.security.raw import PATIENCE_SECONDS, connected, head, wait_until
from tests.support import LiveServer, live_server, make_service

SOON = 0.4  # seconds, of the time limits here
LONG = b'{"inputs":"Hi","parameters":{"max_new_tokens":500,"ignore_eos":true}}'
INFO = head("GET", "/info", length=0)


def slow(seconds: float, **changes: Any) -> Service:
    """Return a service that answers LONG in so many seconds."""
    settings = make_service(validate_responses=False, **changes).settings
    return make_service(settings, fake_client(settings.engine_config(), step_seconds=seconds / 500))


def answered(by: AnsweringProtocol, count: int) -> None:
    """Wait until the server has answered so many requests."""
    wait_until(lambda: by.server_state.total_requests >= count, "requests aren't answered")


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> list[AnsweringProtocol]:
    """Return the server's ends of connections, as they come."""
    ends: list[AnsweringProtocol] = []
    made = AnsweringProtocol.connection_made

    def connection_made(end: AnsweringProtocol, transport: asyncio.Transport) -> None:
        made(end, transport)
        ends.append(end)

    monkeypatch.setattr(AnsweringProtocol, "connection_made", connection_made)
    return ends


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    """Serve with room for one connection, which is closed when it has been silent for a moment."""
    monkeypatch.setattr(server_module, "IDLE_CONNECTION_SECONDS", 5 * SOON)
    with live_server(max_connections=1, write_timeout=SOON) as live:
        yield live


def test_a_little_that_is_never_read_keeps_nobody_out(
    held: list[AnsweringProtocol], patient: LiveServer
) -> None:
    """Less than what makes a transport ask its protocol to wait: no timer was there for it."""
    with connected(patient, receive_buffer=4096) as sock:
        sock.sendall(INFO)
        wait_until(lambda: bool(held), "nobody took the connection")
        (end,) = held
        sent = 1
        while not end.transport.get_write_buffer_size():  # all are answered before more are sent
            sock.sendall(INFO * 20)
            sent += 20
            answered(end, sent)
        assert end._unread is None
        wait_until(lambda: end not in end.connections, "the connection is held for ever")
        with patient.client() as other:
            assert other.get("/info").status_code == 200


@pytest.mark.parametrize("pause", [0.0, 0.2])
@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_who_leaves_after_a_second_request_ends_the_first_ones_work(
    path: str, pause: float, caplog: pytest.LogCaptureFixture
) -> None:
    service = slow(4 * PATIENCE_SECONDS)
    with live_server(service) as live:
        with connected(live) as sock:
            sock.sendall(head("POST", path, length=len(LONG)) + LONG + (b"" if pause else INFO))
            wait_until(lambda: bool(service.engine._running), "the request never ran")
            if pause:
                time.sleep(pause)
                sock.sendall(INFO)
                time.sleep(pause)
        wait_until(lambda: not service.engine._running, "the request of a client that has left goes on")
    assert "Exception in ASGI application" not in caplog.text


def test_a_body_that_does_not_come_cuts_no_answer_to_an_earlier_request() -> None:
    with live_server(slow(5, body_timeout=SOON)) as live, connected(live) as sock:
        second = head("POST", "/generate", length=len(LONG)) + LONG[:10]
        sock.sendall(head("POST", "/generate", length=len(LONG)) + LONG + second)
        assert sock.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_query_counts_among_the_bytes_of_a_head() -> None:
    with live_server(header_limit=1024) as live, live.client() as client:
        assert client.get("/health", params={"q": "x" * 2000}).status_code == 431
        assert client.get("/health", params={"q": "x" * 500}).status_code == 200
