"""Nothing that a process writes to standard error tells a prompt, unless `--log-prompts` asks for it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import pytest

from tests.ports import free_port
from tests.processes import children
from tests.security.panicking import AFTER, BEFORE, SECRET
from tests.unit.handlers.test_cli import PLAIN, ROOT

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are found in /proc")

PATIENCE_SECONDS = 60
SILENCES = (1.5, 3, 6, 12, 24)  # seconds: the first is long enough for the log, unless the machine is busy
LISTEN = "import sys; from tests.security.panicking import listen; listen()"
ENGINE = f"{LISTEN}; from tests.unit.inference_process.fake_engine import *; main(sys.argv[1:], NamedCore)"
WORKER = f"{LISTEN}; from handlers.serving.worker import main; sys.exit(main(int(sys.argv[1])))"
SERVER = f"""
{LISTEN}
from functools import partial
from handlers import cli
from handlers.serving import staff
from inference.process import spawned, supervision
Engine = partial(supervision.EngineProcess, program=("-c", {ENGINE!r}))
supervision.EngineProcess = Engine
spawned.SpawnedCore.__init__.__defaults__ = (Engine,)
staff.command = lambda line: [sys.executable, "-P", "-c", {WORKER!r}, str(line)]
sys.exit(cli.launcher(sys.argv[1:]))
"""
IN_ONE = f"""
{LISTEN}
from handlers import cli
from handlers.serving import serve
from inference.fakes.core import fake_client
serve.make_engine = lambda settings: fake_client(settings.engine_config())
sys.exit(cli.launcher(sys.argv[1:]))
"""


class Live:
    """A server, and what all of its processes have written."""

    def __init__(self, code: str, flags: tuple[str, ...]) -> None:
        address = ("--hostname", "127.0.0.1", "--port", str(free_port()))
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", code, *address, *flags],
            cwd=ROOT,
            env={**PLAIN, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert self.process.stdout is not None
        self.lines: list[str] = []
        self._reading = Thread(target=self.lines.extend, args=(self.process.stdout,), daemon=True)
        self._reading.start()

    def processes(self) -> list[int]:
        """Return the server's process and those that it started."""
        return [self.process.pid, *children(self.process.pid)]

    def until(self, true: Callable[[str], bool]) -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not true("".join(self.lines)):
            assert time.monotonic() < deadline, "".join(self.lines)
            assert self.process.poll() is None, "".join(self.lines)
            time.sleep(0.02)

    def tells(self, words: str, seconds: float) -> bool:
        """Return whether words are told within so many seconds."""
        deadline = time.monotonic() + seconds
        while words not in "".join(self.lines) and time.monotonic() < deadline:
            assert self.process.poll() is None, "".join(self.lines)
            time.sleep(0.02)
        return words in "".join(self.lines)

    def end(self) -> None:
        self.process.terminate()
        try:
            self.process.wait(PATIENCE_SECONDS)
        finally:
            self.process.kill()
        self._reading.join(PATIENCE_SECONDS)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def server(code: str, *flags: str) -> Iterator[Live]:
    live = Live(code, flags)
    try:
        live.until(lambda text: "Connected" in text)
        yield live
    finally:
        live.end()


def hear_out(live: Live, process: int) -> None:
    """Have a process write it all, and more after a silence: what comes too soon is taken for quoted."""
    os.kill(process, signal.SIGUSR2)
    for seconds in SILENCES:
        time.sleep(seconds)
        os.kill(process, signal.SIGUSR2)
        if live.tells(f"{AFTER} of {process}", seconds):
            return
    pytest.fail("".join(live.lines))


MODES = {
    "a process for all": (IN_ONE, (), 1),
    "an engine": (SERVER, (), 2),
    "two workers": (SERVER, ("--api-workers", "2"), 4),
}


@pytest.mark.parametrize("flags", [(), ("--json-output",), ("--log-prompts",)], ids=str)
@pytest.mark.parametrize(
    "mode", [pytest.param(mode, marks=pytest.mark.slow) if "workers" in mode else mode for mode in MODES]
)
def test_no_process_of_a_server_tells_prompts(mode: str, flags: tuple[str, ...]) -> None:
    code, more, count = MODES[mode]
    with server(code, *more, *flags) as live:
        processes = live.processes()
        assert len(processes) == count
        for process in processes:
            hear_out(live, process)
    text = "".join(live.lines)
    assert live.process.returncode == 0
    assert ("--log-prompts" in flags) is (SECRET in text), text
    assert all(text.count(f"{BEFORE} of {process}") == 1 for process in processes)
    assert text.count("panicked at src/utils/normalization.rs") == count
    assert text.count("can't be logged") == text.count("can't be raised, in a") == count
    assert text.count("handled by nobody") == text.count("a thread was ended") == count
    if "--json-output" in flags:
        assert all(json.loads(line)["timestamp"] for line in live.lines)
    else:
        assert all(line.startswith(("20", "    ")) for line in live.lines)
