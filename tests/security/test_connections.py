"""Connections that are slow, silent, too many or gone: they end, and take nobody else's place."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import product
from typing import Any

import pytest

from handlers.http import server as server_module
from handlers.service import Service
from inference.fakes.core import FakeCore, fake_client
from tests.security.raw import connected, head, read_to_end, wait_until
from tests.support import LiveServer, live_server, make_service

SOON = 0.4  # seconds, of the time limits here
MANY = 1_000_000  # tokens: minutes of steps, and hundreds of megabytes of events
ENDLESS = b'{"inputs":"Hi","parameters":{"max_new_tokens":%d,"ignore_eos":true,"top_n_tokens":5}}' % MANY
END_OF_BODY = b"\r\n0\r\n\r\n"
BODY = b'{"inputs":"Hi","parameters":{"max_new_tokens":2000}}'
CHUNKED = (
    b"POST /generate HTTP/1.1\r\nhost: parley\r\ncontent-type: application/json\r\n"
    b"transfer-encoding: chunked\r\nconnection: close\r\n\r\n"
)
LAST_CHUNK = b"1\r\n{\r\n0\r\n"


@pytest.fixture(scope="module")
def bounded() -> Iterator[LiveServer]:
    """Serve with a small limit for headers."""
    with live_server(header_limit=32_768) as live:
        yield live


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
    assert "`header_timeout`" in told_in_json(answer)["error"]


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
    with live_server(service) as live, live.client() as client:
        body = {"inputs": "Hi", "parameters": {"max_new_tokens": 15, "ignore_eos": True}}
        assert client.post("/generate", json=body).status_code == 200


def test_a_stream_that_is_not_read_is_ended_and_its_work_aborted(caplog: pytest.LogCaptureFixture) -> None:
    """All that the system doesn't take has room in the server: it is for `write_timeout` to end it."""
    service = endless(write_timeout=SOON, stream_buffer=2**40)
    with live_server(service) as live:
        answer = left_unread(live, caplog)
        with live.client() as other:
            assert other.get("/health").status_code == 200
    assert "(write_timeout)" in caplog.text
    assert not answer.endswith(END_OF_BODY)


def test_what_waits_for_a_slow_reader_is_bounded(caplog: pytest.LogCaptureFixture) -> None:
    with live_server(endless(write_timeout=600.0, stream_buffer=20_000)) as live:
        answer = left_unread(live, caplog)
    assert "more than 20000 bytes wait for it (stream_buffer)" in caplog.text
    assert not answer.endswith(END_OF_BODY)


def endless(**changes: Any) -> Service:
    """Return a service whose texts of `ENDLESS` take minutes, whoever reads them."""
    changes |= {"max_total_tokens": 2 * MANY, "max_sequence_logprobs": 10 * MANY, "validate_responses": False}
    settings = make_service(**changes).settings
    return make_service(settings, fake_client(settings.engine_config(), step_seconds=1e-4))


def left_unread(live: LiveServer, caplog: pytest.LogCaptureFixture) -> bytes:
    """Ask for an endless stream and read nothing until its work has ended; return what was sent of it."""
    engine = live.service.engine
    caplog.set_level(logging.INFO, logger="parley.connections")
    with connected(live, receive_buffer=4096) as sock:
        sock.sendall(head("POST", "/generate_stream", length=len(ENDLESS)) + ENDLESS)
        wait_until(lambda: engine._running, "the request never ran")
        wait_until(lambda: not engine._running, "the request of a client that doesn't read goes on")
        wait_until(lambda: not engine._admission.in_flight, "its place in the queue is never given back")
        return read_to_end(sock)


def test_who_reads_slowly_but_steadily_is_not_cut() -> None:
    """One answer of 4 MB, of which the system takes 3 at most: the rest waits in the server."""
    asked = json.dumps({"inputs": "a" * 60_000}).encode()
    patience = 2.0  # seconds, which a client on a busy machine needs, too
    service = make_service(max_input_tokens=65_000, max_total_tokens=66_000, write_timeout=patience)
    with live_server(service) as live, connected(live, receive_buffer=4096) as sock:
        sock.sendall(head("POST", "/tokenize", length=len(asked), more="connection: close\r\n") + asked)
        answer = bytearray(sock.recv(1))
        began = time.monotonic()
        while part := sock.recv(16_384):
            answer += part
            time.sleep(0.05 if time.monotonic() - began < patience * 2 else 0)
    told = bytes(answer).partition(b"\r\n\r\n")
    assert b"transfer-encoding: chunked" in told[0]
    assert told[2].endswith(b"\r\n0\r\n\r\n")


def test_connections_beyond_their_number_are_told_so_and_requests_go_on() -> None:
    with live_server(max_connections=5) as live, ExitStack() as held:
        busy = [held.enter_context(half_sent(live)) for _ in range(5)]
        assert refused(live)
        for sock in busy:
            sock.sendall(BODY[-1:])
            assert read_to_end(sock).startswith(b"HTTP/1.1 200 ")


def test_probes_are_answered_whoever_holds_the_connections() -> None:
    with live_server(max_connections=3) as live, ExitStack() as held:
        for _ in range(3):
            held.enter_context(half_sent(live))
        assert refused(live)
        for path in ("/health", "/livez", "/readyz?verbose", "/ping", "/metrics"):
            assert live.get(path).status_code == 200
        assert refused(live)


def test_connections_that_never_speak_keep_nobody_out() -> None:
    with live_server(max_connections=3) as live, ExitStack() as held:
        silent = [held.enter_context(connected(live)) for _ in range(10)]
        for path in ("/health", "/info"):
            assert live.get(path).status_code == 200
        assert [read_to_end(sock) for sock in silent[:7]] == [b""] * 7  # the oldest first


def test_requests_that_begin_and_do_not_go_on_keep_nobody_out() -> None:
    """Bytes that drip don't make a connection younger."""
    with live_server(max_connections=2) as live, ExitStack() as held:
        first, second = (held.enter_context(connected(live)) for _ in range(2))
        for sock, part in ((first, b"GET /health"), (second, b"GET /health HTTP/1.1\r\n"), (first, b" HTTP")):
            sock.sendall(part)
            time.sleep(0.05)  # the server has to see them in this order
        assert live.get("/info").status_code == 200
        answer = read_to_end(first)
        assert answer.startswith(b"HTTP/1.1 503 ")
        assert "`max_connections`" in told_in_json(answer)["error"]
        second.sendall(b"host: parley\r\nconnection: close\r\n\r\n")
        assert read_to_end(second).startswith(b"HTTP/1.1 200 ")


def test_the_connection_that_is_idle_the_longest_makes_room() -> None:
    with live_server(max_connections=3) as live, ExitStack() as held:
        socks = [held.enter_context(connected(live)) for _ in range(3)]
        for sock in (*socks, socks[0]):  # the second is the one that was used the longest ago
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: parley\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        assert live.get("/livez").status_code == 200
        assert read_to_end(socks[1]) == b""
        for sock in (socks[0], socks[2]):
            sock.sendall(b"GET /health HTTP/1.1\r\nhost: parley\r\n\r\n")
            assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")


def test_line_breaks_between_requests_do_not_keep_a_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_module, "IDLE_CONNECTION_SECONDS", SOON)
    with live_server() as live, connected(live) as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nhost: parley\r\n\r\n\r\n")
        assert sock.recv(4096).startswith(b"HTTP/1.1 200 ")
        sock.sendall(b"\r\n")
        assert read_to_end(sock) == b""


@contextmanager
def half_sent(live: LiveServer) -> Iterator[socket.socket]:
    """Begin a request, and stop within its body, for which the server waits."""
    more = "connection: close\r\nexpect: 100-continue\r\n"
    with connected(live) as sock:
        sock.sendall(head("POST", "/generate", length=len(BODY), more=more))
        assert sock.recv(4096) == b"HTTP/1.1 100 Continue\r\n\r\n"
        sock.sendall(BODY[:-1])
        yield sock


def refused(live: LiveServer) -> bool:
    """Ask for something that is no probe; return whether there was no room for it."""
    with connected(live) as sock:
        sock.sendall(b"GET /info HTTP/1.1\r\nhost: parley\r\nconnection: close\r\n\r\n")
        answer = read_to_end(sock)
    if answer.startswith(b"HTTP/1.1 200 "):
        return False
    assert answer.startswith(b"HTTP/1.1 503 ")
    assert b"retry-after: 1" in answer
    assert b"`max_connections`" in answer
    told_in_json(answer)
    return True


def told_in_json(answer: bytes) -> dict[str, str]:
    """Return the error; its request id has to be the header's."""
    top, _, body = answer.partition(b"\r\n\r\n")
    told: dict[str, str] = json.loads(body)
    assert f"x-request-id: {told.pop('request_id')}".encode() in top.split(b"\r\n")
    assert b"content-type: application/json" in top.split(b"\r\n")
    return told


@pytest.mark.parametrize(
    ("opening", "unit"),
    [
        (LAST_CHUNK, b"a: b\r\n"),
        (LAST_CHUNK, b"a: " + b"b" * 1000 + b"\r\n"),
        (LAST_CHUNK, b"a" * 1000),
        (LAST_CHUNK + b"x: ", b"a" * 1000),
        (b"5;x=", b"a" * 1000),
    ],
    ids=["many", "long", "one name", "one value", "chunk extension"],
)
def test_what_follows_the_last_chunk_is_bounded(bounded: LiveServer, opening: bytes, unit: bytes) -> None:
    """Chunk extensions, too; a server without the bound would take it all, and wait for more."""
    piece = unit * (8192 // len(unit) + 1)
    with connected(bounded) as sock:
        sock.sendall(CHUNKED + opening)
        answer = send_for_an_answer(sock, piece, 2**20)
    assert answer.startswith(b"HTTP/1.1 400 ") or not answer  # reset, with bytes of ours unread


def send_for_an_answer(sock: socket.socket, piece: bytes, most: int) -> bytes:
    """Send until the server closes; fail if it takes `most` bytes."""
    try:
        for _ in range(most // len(piece)):
            sock.sendall(piece)
            time.sleep(0.001)
    except OSError:
        pass
    else:
        pytest.fail("the server took it all")
    return read_to_end(sock)


def test_trailers_are_no_headers(bounded: LiveServer) -> None:
    body = b'{"inputs":"Hi","parameters":{"max_new_tokens":1}}'
    with connected(bounded) as sock:
        sock.sendall(CHUNKED + b"%x\r\n%s\r\n0\r\nx-request-id: smuggled\r\n\r\n" % (len(body), body))
        answer = read_to_end(sock)
    assert answer.startswith(b"HTTP/1.1 200 ")
    assert b"smuggled" not in answer


def test_many_small_chunks_are_no_trailers(bounded: LiveServer) -> None:
    body = json.dumps({"inputs": "Hi" + " " * 10_000, "parameters": {"max_new_tokens": 1}}).encode()
    with connected(bounded) as sock:
        sock.sendall(CHUNKED + b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
        answer = read_to_end(sock)
    assert answer[:13] in (b"HTTP/1.1 200 ", b"HTTP/1.1 422 ")  # it was read to the end


def test_a_storm_of_clients_that_leave_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """No text ends by itself: what doesn't run any more was aborted."""
    aborted: set[str] = set()
    abort = FakeCore.abort

    def noting_abort(core: FakeCore, request_id: str) -> None:
        aborted.add(request_id)
        abort(core, request_id)

    monkeypatch.setattr(FakeCore, "abort", noting_abort)
    with live_server(endless()) as live:
        engine = live.service.engine
        for at_once, path in product((False, True), ("/generate", "/generate_stream")):
            with ExitStack() as held:
                for at in range(40):
                    sock = held.enter_context(connected(live))
                    sock.sendall(head("POST", path, length=len(ENDLESS)) + ENDLESS)
                    if at % 2:  # reset, not closed
                        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
                if not at_once:
                    wait_until(lambda: len(engine._running) == 40, "the requests never ran")
            wait_until(
                lambda: not engine._running and not engine._admission.in_flight, "work was left behind"
            )
        assert live.post("/generate", {"inputs": "Hi"}).status_code == 200
        wait_until(lambda: not engine._running and not engine._admission.in_flight, "work was left behind")
    assert len(aborted) >= 80  # of those that left at once, some may never have begun
