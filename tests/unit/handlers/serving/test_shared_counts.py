"""What several API workers count together of what a caller asks for."""

from __future__ import annotations

import os
import re
import signal
import socket
from contextlib import ExitStack

from tests.unit.handlers.serving.test_workers import LONG, SHORT, Live, pytestmark, server, until

__all__ = ["pytestmark"]

HALF = b"POST /generate HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n"


def test_a_caller_may_ask_one_worker_for_all_that_it_may_ask_for() -> None:
    with server("--requests-per-minute", "3") as live:
        first, second = live.workers()
        with live.only(first):
            assert [live.post(SHORT).status_code for _ in range(3)] == [200] * 3
        with live.only(second):
            refused = live.post(SHORT)
    assert (refused.status_code, refused.json()["error_type"]) == (429, "rate_limited")


def test_a_callers_places_are_shared_and_those_of_a_killed_worker_are_given_back() -> None:
    with server("--max-concurrent-requests-per-key", "2") as live, ExitStack() as held:
        first, second = live.workers()
        with live.only(first):
            for _ in range(2):
                held.enter_context(live.streaming(LONG))
        with live.only(second):
            refused = live.post(SHORT)
            assert refused.status_code == 429
            assert "`max_concurrent_requests_per_key`, which is 2, are in flight" in refused.json()["error"]
        os.kill(first, signal.SIGKILL)
        until(lambda: live.post(SHORT).status_code == 200, live)


def test_a_request_of_which_only_the_head_came_is_a_fault_where_its_worker_dies() -> None:
    with server() as live, ExitStack() as held:
        first, _ = live.workers()
        with live.only(first):
            address = ("127.0.0.1", int(live.flag("--port")))
            held.enter_context(socket.create_connection(address)).sendall(HALF)
            until(lambda: preparing(live) == [0, 1], live)
        os.kill(first, signal.SIGKILL)
        until(lambda: live.metric("parley_http_faults") == 1, live)
        assert live.metric('parley_http_requests{status="other"}') == 1
        assert live.metric('tgi_request_failure{err="incomplete"}') == 0  # no request of it had been read
        assert preparing(live) == [0, 0]


def preparing(live: Live) -> list[int]:
    """Return what workers read, the least first."""
    text = live.get("/metrics").text
    return sorted(map(int, re.findall(r'^parley_worker_preparing\{worker="\d"\} (\d+)', text, re.MULTILINE)))
