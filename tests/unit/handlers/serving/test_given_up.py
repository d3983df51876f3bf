"""A server whose engine dies again and again, as users start it: it says so, and ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.unit.handlers.serving.test_workers import FAKE, PATIENCE_SECONDS, Live, server, told, until
from tests.unit.inference_process.fake_engine import PROGRAM

pytestmark = pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="processes are found in /proc")

QUICKLY = """
from functools import partial
from inference.process import spawned, supervision
from inference.process.supervision import EngineProcess
from tests.unit.inference_process.fake_engine import PROGRAM
supervision.BACK_OFF_SECONDS = (0.01,)
spawned.SpawnedCore.__init__.__defaults__ = (partial(EngineProcess, program=PROGRAM),)
"""


def kill_engine(live: Live, last: int) -> int:
    """Kill the engine that came after the last one, once it is ready; return its id."""
    until(lambda: engine(live) not in (0, last), live)
    until(lambda: live.get("/readyz").status_code == 200, live)
    found = engine(live)
    os.kill(found, signal.SIGKILL)
    return found


def engine(live: Live) -> int:
    """Return the engine's id, 0 where there is none: what is being started has its parent's command line."""
    return next(iter(live.children("\0".join(("-P", *PROGRAM)))), 0)


@pytest.mark.parametrize("workers", [1, 2])
def test_an_engine_that_dies_again_and_again_ends_the_server(workers: int) -> None:
    with server("--max-engine-restarts", "1", code=QUICKLY + FAKE, workers=workers) as live:
        first = kill_engine(live, 0)
        kill_engine(live, first)
        assert live.process.wait(PATIENCE_SECONDS) == 1
    reason = "given up: started again 1 times, which `max_engine_restarts` sets, it served no token"
    assert told(live, f"{reason}, and ended by SIGKILL: killed, or out of memory") >= 1
    assert told(live, "Stopped") == 1
