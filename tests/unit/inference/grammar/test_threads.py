"""How nice the threads are that compile and read grammars."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from collections.abc import Callable

import pytest

from inference.grammar import threads as threads_module
from inference.grammar.threads import start_threads, yield_to_others
from inference.grammar_limits import NICENESS


def niceness() -> int:
    return os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_threads_are_as_nice_as_who_asked_for_them_whoever_gives_them_work() -> None:
    usual = niceness()
    with start_threads(2, "usual") as threads, start_threads(1, "yields", yield_to_others) as nice:
        assert nice.submit(niceness).result() == max(NICENESS, usual)
        assert nice.submit(lambda: threads.submit(niceness).result()).result() == usual
    assert niceness() == usual


NICER = """
import os
from inference.grammar.threads import start_threads, yield_to_others
if os.getuid() == 0:
    os.setuid(65534)  # only root may take niceness back
os.setpriority(os.PRIO_PROCESS, 0, max(15, os.getpriority(os.PRIO_PROCESS, 0)))
print(os.nice(0), start_threads(1, "nicer", yield_to_others).submit(os.nice, 0).result())
"""


def test_a_server_that_is_nicer_than_such_threads_starts_them_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NICER], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout in [f"{each} {each}\n" for each in range(15, 20)], done.stderr


def test_where_niceness_is_denied_threads_start_and_it_is_told_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def deny(*_: int) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted")

    monkeypatch.setattr(os, "setpriority", deny)
    forget()
    try:
        with start_threads(3, "usual", yield_to_others) as threads:
            assert threads.submit(niceness).result() == niceness()
    finally:
        forget()
    assert [record.getMessage() for record in caplog.records] == [
        "Grammars are compiled at the same priority as texts are generated: [Errno 1] Operation not permitted"
    ]


def forget() -> None:
    threads_module._tell.cache_clear()


def test_an_initializer_that_fails_is_told_and_no_thread_waits() -> None:
    for _ in range(50):
        with pytest.raises(ValueError, match="not so"):
            start_threads(3, "fails", raise_once(ValueError("not so")))
        assert no_thread("fails")


def raise_once(error: Exception) -> Callable[[], None]:
    """Return what raises in the first thread that calls it alone."""
    errors = iter([error])

    def initialize() -> None:
        for each in errors:
            raise each

    return initialize


def test_a_thread_that_cannot_start_leaves_none_that_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start
    started: list[threading.Thread] = []

    def start_one(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_one)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        start_threads(2, "lonely")
    started[0].join(timeout=30)
    assert no_thread("lonely")


def no_thread(name: str) -> bool:
    """Return whether none of such a name is left, after a while."""
    for thread in threading.enumerate():
        if thread.name.startswith(name):
            thread.join(timeout=30)
    return not any(thread.name.startswith(name) for thread in threading.enumerate())
