"""Real processes whose parents are killed: none of them stays, whatever it does then."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from inference.ipc.leash import Leash
from tests.processes import gone
from tests.unit.inference_process.test_supervision import ROOT, engine, eventually

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="it is Linux that tells of a parent's death")

HEAD = """
import ctypes, os, signal, sys, time
from pathlib import Path
from inference.ipc.leash import Leash, die_with_parent
file = Path(sys.argv[1])
"""
LEASHED = """
leash = Leash(os.getppid())
assert leash.hold()
"""
DEAF = """
signal.signal(signal.SIGALRM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
"""
HOLDS_THE_INTERPRETER = """
file.write_text("begun")
mutex = ctypes.create_string_buffer(64)  # one of libc's, which no signal has it give up
for _ in range(2):
    ctypes.PyDLL(None).pthread_mutex_lock(mutex)
"""
STOPS = """
os.kill(os.getpid(), signal.SIGSTOP)
file.write_text("went on")
"""
ENDS_IN_ORDER = """
while leash.hold():
    time.sleep(0.02)
file.write_text("ended in order")
"""
PARENT = """
import subprocess, sys, time
process = subprocess.Popen([sys.executable, "-c", *sys.argv[1:]])
print(process.pid, flush=True)
time.sleep(600)
"""


def orphan(file: Path, *code: str, once: Callable[[int], bool]) -> int:
    """Run code in a process, kill its parent once something is true of it, and return its id."""
    line = [sys.executable, "-c", PARENT, "".join([HEAD, *code]), str(file)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        try:
            eventually(lambda: once(pid))
        finally:
            parent.kill()
    return pid


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


def test_one_that_is_stopped_goes_on_and_ends_in_order(tmp_path: Path) -> None:
    file = tmp_path / "told"
    pid = orphan(file, LEASHED, STOPS, ENDS_IN_ORDER, once=stopped)
    eventually(lambda: gone(pid))
    assert file.read_text() == "ended in order"


def test_one_that_is_stopped_before_it_has_a_leash_is_killed(tmp_path: Path) -> None:
    file = tmp_path / "told"
    pid = orphan(file, "\ndie_with_parent()", STOPS, once=stopped)
    eventually(lambda: gone(pid))
    assert not file.exists()


def test_one_that_holds_the_interpreter_is_ended_after_a_while(tmp_path: Path) -> None:
    file = tmp_path / "told"
    began = time.monotonic()
    pid = orphan(file, DEAF, LEASHED, HOLDS_THE_INTERPRETER, once=lambda pid: file.exists())
    assert not gone(pid)
    eventually(lambda: gone(pid), seconds=10 * Leash.SECONDS)
    assert time.monotonic() - began > Leash.SECONDS - 2  # it had its time


def test_who_lets_it_go_on_while_its_parent_lives_does_no_harm() -> None:
    code = """
os.kill(os.getpid(), signal.SIGCONT)
assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= Leash.SECONDS
assert leash.hold()
assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
"""
    line = [sys.executable, "-c", "".join([HEAD, LEASHED, code]), ""]
    subprocess.run(line, cwd=ROOT, check=True, timeout=60)


def test_one_whose_parent_had_died_before_has_a_while() -> None:
    code = """
leash = Leash(1)
assert not leash.hold()
before = signal.getitimer(signal.ITIMER_REAL)[0]
time.sleep(0.1)
assert not leash.hold()
assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] < before  # it isn't put off by looking
"""
    subprocess.run([sys.executable, "-c", f"{HEAD}{code}", ""], cwd=ROOT, check=True, timeout=60)


@pytest.mark.parametrize("stopped", [False, True])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_engine_does_not_outlive_its_parent(number: signal.Signals, stopped: bool) -> None:
    code = """
import sys, time
from tests.unit.inference_process.test_supervision import engine
process = engine()
process.start()
process.wait(lambda line: None)
print(process.pid, process.address, flush=True)
time.sleep(100)
"""
    line = [sys.executable, "-c", code]
    with subprocess.Popen(line, stdout=subprocess.PIPE, text=True, cwd=ROOT) as parent:
        assert parent.stdout is not None
        pid, address = parent.stdout.readline().split()
        assert not gone(int(pid))
        if stopped:
            os.kill(int(pid), signal.SIGSTOP)
        parent.send_signal(number)
    eventually(lambda: gone(int(pid)))
    eventually(lambda: not Path(address).parent.exists())


@pytest.mark.parametrize("stopped", [False, True])
def test_the_service_managers_signal_to_all_processes_is_not_the_engines_to_act_on(stopped: bool) -> None:
    running = engine()
    running.start()
    running.wait(print)
    pid = running.pid
    assert pid is not None
    if stopped:  # and goes on: its end is not to come for that
        os.kill(pid, signal.SIGSTOP)
        os.kill(pid, signal.SIGCONT)
    os.kill(pid, signal.SIGTERM)
    os.kill(pid, signal.SIGINT)
    time.sleep(1.5)
    assert (running.pid, gone(pid), running.alive) == (pid, False, True)
    running.stop()
    assert gone(pid)
