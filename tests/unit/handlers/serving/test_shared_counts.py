"""What several API workers count together of what a caller asks for."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

from tests.unit.handlers.serving.test_workers import LONG, SHORT, pytestmark, server, until

__all__ = ["pytestmark"]


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
