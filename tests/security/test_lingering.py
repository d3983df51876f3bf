"""Clients that write all of a body before they read, and are answered before it has come."""

from __future__ import annotations

import socket
import time
import urllib.error
import urllib.request

import pytest

from handlers.http import lingering
from tests.security.raw import connected, head, read_to_end
from tests.support import LiveServer

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
        assert sock.recv(4096).startswith(b"HTTP/1.1 413 ")
        began = time.monotonic()
        for _ in range(3):
            sock.sendall(MEGABYTE)
        assert sock.recv(1) == b""  # an end, and no reset
        assert time.monotonic() - began < lingering.SECONDS / 2


def test_what_follows_the_body_is_not_answered(server: LiveServer) -> None:
    with connected(server) as sock:
        opening = head("POST", "/generate", length=3 * 2**20, more=CLOSE)
        sock.sendall(opening + MEGABYTE * 3 + b"GET /health HTTP/1.1\r\nhost: parley\r\n\r\n")
        assert read_to_end(sock).count(b"HTTP/1.1 ") == 1


def test_a_body_that_does_not_come_is_not_waited_for_long(
    server: LiveServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lingering, "SECONDS", SOON)
    with connected(server) as sock:
        sock.sendall(head("POST", "/generate", length=10**9, more=CLOSE))
        began = time.monotonic()
        assert read_to_end(sock).startswith(b"HTTP/1.1 413 ")
        assert SOON * 0.9 < time.monotonic() - began < lingering.SECONDS + 5


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
