"""Threads that stand from the beginning, and threads that yield; one is as nice as the one that starts it."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from inference.grammar.limits import NICENESS


def yield_to_others() -> None:
    """Make this thread as nice as NICENESS, or leave it as it is where it is nicer."""
    if sys.platform == "linux":  # elsewhere a thread has no niceness of its own
        thread = threading.get_native_id()
        os.setpriority(os.PRIO_PROCESS, thread, max(NICENESS, os.getpriority(os.PRIO_PROCESS, thread)))


def start_threads(
    workers: int, name: str, initializer: Callable[[], None] = lambda: None
) -> ThreadPoolExecutor:
    """Return threads that have started, and so are as nice as the one that asks for them."""
    threads = ThreadPoolExecutor(workers, thread_name_prefix=name, initializer=initializer)
    barrier = threading.Barrier(workers + 1)  # none is idle before all have started
    for _ in range(workers):
        threads.submit(barrier.wait)
    barrier.wait()
    return threads
