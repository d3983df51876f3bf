"""How nice the threads are that compile and read grammars."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

from inference.grammar.limits import NICENESS
from inference.grammar.threads import start_threads, yield_to_others


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
os.nice(15)
print(start_threads(1, "nicer", yield_to_others).submit(os.nice, 0).result())
"""


def test_a_server_that_is_nicer_than_such_threads_starts_them_too() -> None:
    done = subprocess.run(
        [sys.executable, "-c", NICER], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.stdout == "15\n", done.stderr
