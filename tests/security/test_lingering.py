"""Clients that write all of a body before they read, and are answered before it has come."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request

import pytest

from handlers.http import lingering
from handlers.metrics.metrics import Metrics
from tests.security.raw import connected, head, read_to_end
from tests.support import LiveServer, live_server

CLOSE = "connection: close\r\n"
SOON = 0.3  # seconds
MEGABYTE = b" " * 2**20


@pytest.mark.parametrize("size", [2_000_001, 3_000_000, 20_000_000])
@pytest.mark.parametrize(("media_type", "status"), [("application/json", 413), ("text/plain", 415)])
def test_whoever_writes_before_reading_gets_the_answer_and_no_reset(
    size: int, media_type: str, status: int, server: LiveServer
) -> None:
    for _ in range(5):
        request = urllib.request.Request(
            f"{server.base_url}/generate", data=b" " * size, headers={"content-type": media_type}
        )
        with pytest.raises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=30)
        assert refused.value.code == status
        refused.value.close()


def test_the_connection_is_closed_once_the_body_has_come(server: LiveServer) -> None:
    with connected(server) as sock:
        sock.sendall(head("POST", "/generate", length=3 * 2**20, more=CLOSE))
        assert read_to_end(sock).startswith(b"HTTP/1.1 413 ")
        for _ in range(3):
            sock.sendall(MEGABYTE)
        assert seconds_until_closed(sock) < lingering.SECONDS / 2


def test_whoever_reads_to_the_end_need_not_wait_for_it(server: LiveServer) -> None:
    with connected(server) as sock:
        sock.sendall(head("POST", "/generate", length=3 * 2**20, more=CLOSE))
        began = time.monotonic()
        assert read_to_end(sock).endswith(b"}")
        assert time.monotonic() - began < lingering.SECONDS / 2
        sock.sendall(MEGABYTE * 2)  # what is written after it is read on, and not reset
        with pytest.raises(TimeoutError):
            seconds_until_closed(sock, patience=SOON)


@pytest.mark.parametrize("version", ["1.1", "1.0"])
def test_what_follows_the_body_is_not_executed(version: str, monkeypatch: pytest.MonkeyPatch) -> None:
    begun: list[str] = []
    monkeypatch.setattr(Metrics, "began", lambda _, scope, account: begun.append(scope["path"]))
    monkeypatch.setattr(Metrics, "ended", lambda *_: None)
    more = CLOSE if version == "1.1" else "connection: keep-alive\r\n"
    opening = head("POST", "/generate", length=3 * 2**20, more=more).replace(b"1.1", version.encode(), 1)
    behind = f"GET /info HTTP/{version}\r\nhost: parley\r\n\r\n".encode()
    with live_server() as live:
        with connected(live) as sock:
            sock.sendall(opening)
            assert read_to_end(sock).count(b"HTTP/1.1 ") == 1
            sock.sendall(MEGABYTE * 3 + behind)
            seconds_until_closed(sock)
        assert live.get("/health").status_code == 200  # whatever was begun has had a turn
    assert begun == ["/generate", "/health"]


def test_a_body_that_does_not_come_is_not_waited_for_long(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering, "SECONDS", SOON)
    with connected(server) as sock:
        sock.sendall(head("POST", "/generate", length=10**9, more=CLOSE))
        assert read_to_end(sock).startswith(b"HTTP/1.1 413 ")
        assert SOON * 0.5 < seconds_until_closed(sock) < SOON + 2


def test_a_body_that_waits_to_be_asked_for_is_not_waited_for(server: LiveServer) -> None:
    with connected(server) as sock:
        more = CLOSE + "expect: 100-continue\r\n"
        began = time.monotonic()
        sock.sendall(head("POST", "/generate", length=10**9, more=more))
        assert read_to_end(sock).startswith(b"HTTP/1.1 413 ")
        seconds_until_closed(sock)
        assert time.monotonic() - began < lingering.SECONDS / 2


def seconds_until_closed(sock: socket.socket, patience: float = 10.0) -> float:
    """Return after what time a connection, whose other side has said its last, takes no more of ours."""
    began = time.monotonic()
    while time.monotonic() - began < patience:
        try:
            sock.sendall(b" ")
        except (ConnectionResetError, BrokenPipeError):
            return time.monotonic() - began
        time.sleep(0.01)
    raise TimeoutError(f"the connection is open after {patience} s")


def test_a_body_without_an_end_is_not_read_for_ever(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering, "BYTES", 4 * 2**20)
    monkeypatch.setattr(lingering, "SECONDS", 1e6)
    with connected(server) as sock:
        sock.sendall(head("POST", "/generate", length=10**12, more=CLOSE))
        assert sock.recv(4096).startswith(b"HTTP/1.1 413 ")
        with pytest.raises((ConnectionResetError, BrokenPipeError)):
            send_without_end(sock)


def send_without_end(sock: socket.socket) -> None:
    while True:
        sock.sendall(MEGABYTE)
