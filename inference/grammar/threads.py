"""Threads that stand from the beginning, and threads that yield; one is as nice as the one that starts it."""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cache

from inference.grammar_limits import NICENESS

LOG = logging.getLogger(__name__)
TELLING = threading.Lock()


def yield_to_others() -> None:
    """Make this thread as nice as NICENESS, or leave it as it is where it is nicer, or may not be made so."""
    if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
        try:
            be_nice(threading.get_native_id())
        except OSError as error:
            with TELLING:  # a cache that several ask at once asks several times
                _tell(str(error))


def be_nice(who: int) -> None:
    """Make a thread, or this process where it is 0, as nice as NICENESS unless it is nicer; raise OSError."""
    os.setpriority(os.PRIO_PROCESS, who, max(NICENESS, os.getpriority(os.PRIO_PROCESS, who)))


@cache
def _tell(why: str) -> None:
    """Tell it once, not of each thread."""
    LOG.warning("Grammars are compiled at the same priority as texts are generated: %s", why)


def start_threads(
    workers: int, name: str, initializer: Callable[[], None] = lambda: None
) -> ThreadPoolExecutor:
    """Return threads that have started, and so are as nice as the one that asks for them.

    Raises what keeps one from starting, or what its initializer raises; the others end then.
    """
    barrier = threading.Barrier(workers + 1)  # none is idle before all have started
    failed: list[BaseException] = []

    def begin() -> None:
        try:
            initializer()
        except BaseException as error:  # an executor that sees it takes the end from its own queue
            failed.append(error)
            barrier.abort()
        else:
            with suppress(threading.BrokenBarrierError):
                barrier.wait()

    threads = ThreadPoolExecutor(workers, thread_name_prefix=name, initializer=begin)
    try:
        for _ in range(workers):
            threads.submit(int)
        barrier.wait()
    except BaseException:
        barrier.abort()
        threads.shutdown(wait=False, cancel_futures=True)
        for error in failed:
            raise error from None
        raise
    return threads
