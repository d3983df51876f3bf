"""Signals that end a server, in processes of their own."""

from __future__ import annotations

import signal
import subprocess
import sys

import pytest

OUTLIVES = "from inference.signals import *; outlive_endings(); print(1, flush=True); input()"
ENDS = """
import signal, sys
from inference.signals import *
signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
end_by_hangup()
print(1, flush=True)
input()
"""


def begun(code: str, *, nohup: bool = False) -> subprocess.Popen[str]:
    handled = "SIG_IGN" if nohup else "SIG_DFL"  # whatever these tests run under
    before = f"import signal; signal.signal(signal.SIGHUP, signal.{handled})\n"
    process = subprocess.Popen(
        [sys.executable, "-c", before + code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "1\n"
    return process


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_process_that_serves_a_server_outlives_what_ends_that(number: signal.Signals) -> None:
    process = begun(OUTLIVES)
    process.send_signal(number)
    process.communicate("\n", 30)
    assert process.returncode == 0


def test_a_closed_terminal_is_taken_for_a_request_to_end() -> None:
    process = begun(ENDS)
    process.send_signal(signal.SIGHUP)
    assert process.wait(30) == 7
    process.communicate()


def test_a_terminal_that_says_twice_that_it_is_closed_asks_once() -> None:
    process = begun(ENDS.replace("sys.exit(7)", "print(2, flush=True)") + "input()\n")
    assert process.stdout is not None
    process.send_signal(signal.SIGHUP)
    assert process.stdout.readline() == "2\n"
    process.send_signal(signal.SIGHUP)
    assert process.communicate("\n\n", 30)[0] == ""
    assert process.returncode == 0


def test_what_nohup_has_ignored_stays_ignored() -> None:
    process = begun(ENDS, nohup=True)
    process.send_signal(signal.SIGHUP)
    process.communicate("\n", 30)
    assert process.returncode == 0
