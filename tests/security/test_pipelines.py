"""Requests that come on a connection before those ahead of them are answered, and CONNECT."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

from handlers.http.protocol import MOST_PIPELINED
from tests.security.raw import connected, head, read_to_end, wait_until
from tests.security.test_connections import ENDLESS, endless
from tests.support import LiveServer, live_server

PROBE = b"GET /livez HTTP/1.1\r\nhost: parley\r\n\r\n"
LAST = b"GET /livez HTTP/1.1\r\nhost: parley\r\nconnection: close\r\n\r\n"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    with live_server() as live:
        yield live


def test_requests_behind_each_other_are_all_answered(server: LiveServer) -> None:
    with connected(server) as sock:
        sock.sendall(PROBE * (MOST_PIPELINED - 1) + LAST)
        answers = read_to_end(sock)
    assert answers.count(b"HTTP/1.1 200 ") == MOST_PIPELINED


def test_of_more_than_may_wait_the_first_are_answered_and_the_rest_is_refused(
    server: LiveServer,
) -> None:
    with connected(server) as sock:
        sock.sendall(PROBE * 5000)
        answers = read_to_end(sock)
    assert answers.count(b"HTTP/1.1 200 ") == MOST_PIPELINED + 1  # one was being answered
    refusal = answers.rpartition(b"HTTP/1.1 ")[2]
    assert refusal.startswith(b"429 ")
    assert b"At most 64 requests may wait on one connection" in refusal


def test_what_waited_on_a_connection_goes_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the collector, which looks at what has lived for long once in millions of objects."""
    made: list[weakref.ref[object]] = []
    init = RequestResponseCycle.__init__

    def noting(self: RequestResponseCycle, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made.append(weakref.ref(self))

    monkeypatch.setattr(RequestResponseCycle, "__init__", noting)
    gc.disable()
    try:
        with live_server(endless()) as live:
            with connected(live) as sock:
                sock.sendall(head("POST", "/generate", length=len(ENDLESS)) + ENDLESS + PROBE * 50)
                wait_until(lambda: len(made) == 51, "they were not read")
            wait_until(lambda: sum(each() is not None for each in made) <= 2, "they were kept")
    finally:
        gc.enable()


@pytest.mark.parametrize("target", [b"/livez", b"http://parley/livez"])
def test_connect_is_no_method_of_a_route(server: LiveServer, target: bytes) -> None:
    with connected(server) as sock:
        sock.sendall(b"CONNECT " + target + b" HTTP/1.1\r\nhost: parley\r\nconnection: close\r\n\r\n")
        answer = read_to_end(sock)
    assert answer.startswith(b"HTTP/1.1 405 ")
    assert b"allow: GET" in answer
