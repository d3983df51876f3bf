"""Standard error of a process that serves comes out of its log, and is given back in the end."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tests.unit.handlers.test_cli import PLAIN, ROOT

pytestmark = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="pipes are looked at in /proc")

BEGIN = """
import ctypes, faulthandler, logging, os, subprocess, sys, threading, time
from handlers.serving import logs, stderr
logs.configure("info")
def within():
"""
END = """
with stderr.in_the_log():
    within()
os.write(2, b"after the end\\n")
"""


def run(within: str, *, close: bool = False) -> subprocess.CompletedProcess[str]:
    """Run a statement while standard error is captured."""
    code = f"{BEGIN}    {within}\n{END}"
    before = ["sh", "-c", 'exec "$0" "$@" 2>&-'] if close else []
    return subprocess.run(
        [*before, sys.executable, "-c", code],
        cwd=ROOT,
        env=PLAIN,
        capture_output=True,
        text=True,
        timeout=60,
    )


def messages(done: subprocess.CompletedProcess[str]) -> list[str]:
    return [line.partition(" stderr: ")[2] for line in done.stdout.splitlines()]


@pytest.mark.parametrize(
    "within",
    [
        'os.write(2, b"a warning\\n")',
        'os.write(2, b"a warning")',  # the last one needs no end
        'print("a warning", file=sys.stderr)',
        'print("a warning", end="", file=sys.stderr)',
        'ctypes.CDLL(None).write(2, b"a warning\\n", 10)',
        'subprocess.run(["sh", "-c", "echo a warning >&2"])',
    ],
)
def test_whatever_is_written_is_logged_and_afterwards_no_more(within: str) -> None:
    done = run(within)
    assert (done.returncode, messages(done)) == (0, ["a warning"])
    assert " WARN stderr: a warning\n" in done.stdout
    assert done.stderr == "after the end\n"


def test_it_is_no_terminal_to_those_who_ask() -> None:
    assert messages(run("os.write(2, str(sys.stderr.isatty()).encode())")) == ["False"]


def test_an_error_leaves_it_as_it_was() -> None:
    done = run('os.write(2, b"a warning\\n"); 1 / 0')
    assert messages(done) == ["a warning"]
    assert done.stderr.endswith("ZeroDivisionError: division by zero\n")


def test_an_end_without_order_loses_nothing_of_what_was_written_before() -> None:
    done = run('os.write(2, b"the last words\\n" * 1000); logging.shutdown(); os._exit(5)')
    assert (done.returncode, messages(done)) == (5, ["the last words"] * 1000)


def test_a_crash_tells_where_it_was_on_standard_error_itself() -> None:
    done = run("os.abort()")
    assert done.returncode == -signal.SIGABRT
    assert "Fatal Python error: Aborted" in done.stderr
    assert "in within" in done.stderr


def test_one_that_is_closed_is_left_so() -> None:
    done = run('print("served", flush=True)', close=True)
    assert done.stdout == "served\n"


def test_whoever_keeps_python_from_going_on_does_not_wait_for_it_to() -> None:
    # Through PyDLL the GIL is kept, as by a library that panics: more than a pipe takes
    done = run('ctypes.PyDLL(None).write(2, b"x" * 4_000_000, 4_000_000)')
    assert done.returncode == 0
    assert messages(done)[0].startswith("xxx")


def test_a_process_that_stays_behind_holds_up_no_end() -> None:
    began = time.monotonic()
    done = run('subprocess.Popen(["sleep", "30"], stdout=subprocess.DEVNULL); os.write(2, b"a warning\\n")')
    assert messages(done) == ["a warning"]
    assert time.monotonic() - began < 20


def test_a_log_that_can_not_be_written_does_not_feed_on_itself() -> None:
    broken = "logging.root.handlers[0].format = None"
    done = run(f'{broken}; os.write(2, b"a warning\\n"); time.sleep(0.5)')
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "after the end\n")
