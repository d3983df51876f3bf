"""Connections that are slow, silent, too many or gone: they end, and take nobody else's place."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack

import httpx
import pytest

from inference.fake import fake_client
from tests.security.raw import connected, head, read_to_end, wait_until
from tests.support import LiveServer, live_server, make_service

SOON = 0.4  # seconds, of the time limits here
LONG = {"inputs": "Hi", "parameters": {"max_new_tokens": 2000}}
BODY = b'{"inputs":"Hi","parameters":{"max_new_tokens":2000}}'


@pytest.fixture(scope="module")
def strict() -> Iterator[LiveServer]:
    """Serve with short time limits."""
    with live_server(header_timeout=SOON, body_timeout=SOON, write_timeout=SOON) as live:
        yield live


def test_a_connection_that_never_speaks_is_closed(strict: LiveServer) -> None:
    with connected(strict) as sock:
        assert read_to_end(sock) == b""


def test_headers_that_drip_are_given_up(strict: LiveServer) -> None:
    with connected(strict) as sock:
        dripping = threading.Event()

        def drip() -> None:
            for byte in b"GET /health HTTP/1.1\r\nx: " + b"x" * 10_000:
                if dripping.wait(0.02):
                    return
                try:
                    sock.send(bytes([byte]))
                except OSError:  # closed: that is what is tested
                    return

        thread = threading.Thread(target=drip)
        thread.start()
        answer = read_to_end(sock)
        dripping.set()
        thread.join()
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"`header_timeout`" in answer


def test_a_body_that_drips_is_given_up(strict: LiveServer) -> None:
    with connected(strict) as sock:
        sock.sendall(head("POST", "/generate", length=100) + b'{"inputs"')
        answer = read_to_end(sock)
    assert answer.startswith(b"HTTP/1.1 408 ")
    assert b"connection: close" in answer
    assert b"`body_timeout`" in answer


def test_a_body_that_nobody_reads_does_not_keep_a_connection(strict: LiveServer) -> None:
    with connected(strict) as sock:  # refused by its type before its body has come
        sock.sendall(head("POST", "/generate", length=1000).replace(b"application/json", b"text/html"))
        answer = read_to_end(sock)
    assert answer.startswith(b"HTTP/1.1 415 ")


def test_a_kept_connection_may_be_silent_between_requests(strict: LiveServer) -> None:
    with connected(strict) as sock:
        for _ in range(2):
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: parley\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
            sock.settimeout(SOON * 2)
            with pytest.raises(TimeoutError):
                sock.recv(1)
            sock.settimeout(30)


def test_a_request_that_takes_long_is_not_a_slow_one() -> None:
    engine = fake_client(step_seconds=0.1)
    service = make_service(engine=engine, header_timeout=SOON, body_timeout=SOON, write_timeout=SOON)
    with live_server(service) as live, httpx.Client(base_url=live.base_url, timeout=60) as client:
        body = {"inputs": "Hi", "parameters": {"max_new_tokens": 15, "ignore_eos": True}}
        assert client.post("/generate", json=body).status_code == 200


def test_a_stream_that_is_not_read_is_ended_and_its_work_aborted() -> None:
    """The client reads nothing; what it asked for would be some megabytes."""
    engine = fake_client(make_service(max_total_tokens=60_000).settings.engine_config(), step_seconds=1e-4)
    service = make_service(
        make_service(max_total_tokens=60_000).settings, engine, write_timeout=SOON, validate_responses=False
    )
    asked = b'{"inputs":"Hi","parameters":{"max_new_tokens":50000,"ignore_eos":true,"top_n_tokens":5}}'
    with live_server(service) as live, connected(live, receive_buffer=4096) as sock:
        sock.sendall(head("POST", "/generate_stream", length=len(asked)) + asked)
        wait_until(lambda: engine._running, "the request never ran")
        wait_until(lambda: not engine._running, "the request of a client that doesn't read goes on")
        assert engine._admission.in_flight == 0
        with httpx.Client(base_url=live.base_url) as other:
            assert other.get("/health").status_code == 200


def test_what_waits_for_a_slow_reader_is_bounded() -> None:
    settings = make_service(max_total_tokens=60_000).settings
    engine = fake_client(settings.engine_config(), step_seconds=1e-4)
    service = make_service(settings, engine, stream_buffer=20_000, validate_responses=False)
    asked = b'{"inputs":"Hi","parameters":{"max_new_tokens":50000,"ignore_eos":true,"top_n_tokens":5}}'
    with live_server(service) as live, connected(live, receive_buffer=4096) as sock:
        sock.sendall(head("POST", "/generate_stream", length=len(asked)) + asked)
        wait_until(lambda: engine._running, "the request never ran")
        wait_until(lambda: not engine._running, "the outbox of a slow reader has no bound")


def test_connections_beyond_their_number_are_told_so_and_others_go_on() -> None:
    with live_server(max_connections=5) as live, ExitStack() as held:
        kept = httpx.Client(base_url=live.base_url)
        held.enter_context(kept)
        assert kept.get("/health").status_code == 200
        for _ in range(4):
            held.enter_context(connected(live))
        wait_until(lambda: refused(live), "a connection too many was taken")
        assert kept.get("/health").status_code == 200


def refused(live: LiveServer) -> bool:
    with connected(live) as sock:
        sock.settimeout(0.2)
        try:
            answer = read_to_end(sock)
        except TimeoutError:  # it was taken
            return False
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in answer
    assert b"`max_connections`" in answer
    return True


def test_a_storm_of_clients_that_leave_leaves_nothing_behind() -> None:
    engine = fake_client(step_seconds=0.002)
    with live_server(make_service(engine=engine)) as live:
        for wave in range(5):
            with ExitStack() as held:
                for _ in range(40):
                    sock = held.enter_context(connected(live))
                    path = "/generate_stream" if wave % 2 else "/generate"
                    sock.sendall(head("POST", path, length=len(BODY)) + BODY)
                    if wave == 4:  # reset, not closed
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
        wait_until(lambda: not engine._running and not engine._admission.in_flight, "work was left behind")
        assert httpx.post(f"{live.base_url}/generate", json={"inputs": "Hi"}).status_code == 200
