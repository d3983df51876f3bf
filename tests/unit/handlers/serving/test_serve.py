"""What a process says of itself once it serves; how it starts and ends is told by test_cli.py."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from handlers.serving import serve
from tests.ports import free_port
from tests.processes import children

ROOT = Path(__file__).parents[4]
PATIENCE_SECONDS = 60


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system doesn't say")
def test_the_memory_of_its_processes_is_known() -> None:
    resident = serve.resident_bytes()
    assert resident is not None
    assert 2**20 < resident < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="the system doesn't say")
def test_the_memory_of_processes_that_others_of_its_own_started_is_known(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wait = "print(flush=True); sys.stdin.read()"
    start = f"subprocess.run([sys.executable, '-c', {'import sys; ' + wait!r}])"
    seen: list[str] = []

    def see(process: str) -> int:
        seen.append(process)
        return 1

    monkeypatch.setattr(serve, "_resident_bytes", see)
    with subprocess.Popen(
        [sys.executable, "-c", f"import subprocess, sys; {start}"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()  # of the child's own
        (grandchild,) = children(child.pid)
        assert serve.resident_bytes() == len(seen)
        assert {"self", str(child.pid), str(grandchild)} <= {*seen}
        child.communicate()


@pytest.mark.parametrize("error", [FileNotFoundError, ProcessLookupError])
def test_one_that_ends_while_it_is_looked_at_is_no_fault(
    error: type[OSError], monkeypatch: pytest.MonkeyPatch
) -> None:
    def end(process: str) -> int:
        raise error(process)

    monkeypatch.setattr(serve, "_resident_bytes", end)
    assert serve.resident_bytes() is None


@pytest.mark.skipif(find_spec("triton") is None, reason="needs a library that tells what has leaked")
def test_nothing_is_said_to_have_leaked_in_the_end() -> None:
    code = f"""
import os, signal, sys, triton
from handlers import cli
from handlers.serving import serve
from inference.fakes.core import fake_client
serve.make_engine = lambda settings: fake_client(settings.engine_config())
serve.say_served = lambda *_: signal.raise_signal(signal.SIGTERM)
sys.exit(cli.launcher(["--hostname", "127.0.0.1", "--port", "{free_port()}"]))
"""
    answer = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=PATIENCE_SECONDS
    )
    assert (answer.returncode, answer.stderr) == (0, ""), answer.stdout
    assert "Stopped" in answer.stdout
