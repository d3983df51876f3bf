"""Clients that don't read the end of an answer, or send more than one request before they leave."""

from __future__ import annotations

import gc
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest

from handlers.http import server as server_module
from handlers.http.answering import AnsweringProtocol
from handlers.service import Service
from inference.fake import fake_client
from tests.security.raw import connected, head, wait_until
from tests.support import LiveServer, live_server, make_service

SOON = 0.4  # seconds, of the time limits here
LONG = b'{"inputs":"Hi","parameters":{"max_new_tokens":500,"ignore_eos":true}}'
SECONDS = 5  # that it takes
INFO = head("GET", "/info", length=0)


def slow(**changes: Any) -> Service:
    """Return a service that answers LONG in some seconds."""
    settings = make_service(validate_responses=False, **changes).settings
    return make_service(settings, fake_client(settings.engine_config(), step_seconds=SECONDS / 500))


def protocol_of(sock: socket.socket) -> AnsweringProtocol:
    """Return the server's end of a connection, once it is there."""
    found: list[AnsweringProtocol] = []

    def look() -> bool:
        # `isinstance` would ask each object for its class, and some of torch's complain
        ends = [each for each in gc.get_objects() if issubclass(type(each), AnsweringProtocol)]
        ends = [each for each in ends if each in each.connections]
        found[:] = (each for each in ends if each.transport.get_extra_info("peername") == sock.getsockname())
        return bool(found)

    wait_until(look, "nobody took the connection")
    return found[0]


def answered(by: AnsweringProtocol, count: int) -> None:
    """Wait until the server has answered so many requests."""
    wait_until(lambda: by.server_state.total_requests >= count, "requests aren't answered")


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> Iterator[LiveServer]:
    """Serve with room for one connection, which is closed when it has been silent for a moment."""
    monkeypatch.setattr(server_module, "IDLE_CONNECTION_SECONDS", 5 * SOON)
    with live_server(max_connections=1, write_timeout=SOON) as live:
        yield live


def test_a_little_that_is_never_read_keeps_nobody_out(patient: LiveServer) -> None:
    """Less than what makes a transport ask its protocol to wait: no timer was there for it."""
    with connected(patient, receive_buffer=4096) as sock:
        sock.sendall(INFO)
        held = protocol_of(sock)
        sent = 1
        while not held.transport.get_write_buffer_size():  # all are answered before more are sent
            sock.sendall(INFO * 20)
            sent += 20
            answered(held, sent)
        assert held._unread is None
        wait_until(lambda: held not in held.connections, "the connection is held for ever")
        with patient.client() as other:
            assert other.get("/info").status_code == 200


@pytest.mark.parametrize("pause", [0.0, 0.2])
@pytest.mark.parametrize("path", ["/generate", "/generate_stream"])
def test_who_leaves_after_a_second_request_ends_the_first_ones_work(
    path: str, pause: float, caplog: pytest.LogCaptureFixture
) -> None:
    service = slow()
    with live_server(service) as live:
        with connected(live) as sock:
            sock.sendall(head("POST", path, length=len(LONG)) + LONG + (b"" if pause else INFO))
            wait_until(lambda: bool(service.engine._running), "the request never ran")
            if pause:
                time.sleep(pause)
                sock.sendall(INFO)
                time.sleep(pause)
        left = time.monotonic()
        wait_until(lambda: not service.engine._running, "the request of a client that has left goes on")
        assert time.monotonic() - left < SECONDS / 2
    assert "Exception in ASGI application" not in caplog.text


def test_a_body_that_does_not_come_cuts_no_answer_to_an_earlier_request() -> None:
    with live_server(slow(body_timeout=SOON)) as live, connected(live) as sock:
        second = head("POST", "/generate", length=len(LONG)) + LONG[:10]
        sock.sendall(head("POST", "/generate", length=len(LONG)) + LONG + second)
        assert sock.recv(100).startswith(b"HTTP/1.1 200 ")


def test_a_query_counts_among_the_bytes_of_a_head() -> None:
    with live_server(header_limit=1024) as live, live.client() as client:
        assert client.get("/health", params={"q": "x" * 2000}).status_code == 431
        assert client.get("/health", params={"q": "x" * 500}).status_code == 200
