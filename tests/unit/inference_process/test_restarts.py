"""How often an engine that dies is started again, after which pauses, and when it is given up."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import replace
from functools import partial

import pytest

from inference.config import EngineConfig
from inference.core import Life
from inference.ipc import watchdog
from inference.ipc.ended import Ended
from inference.ipc.messages import Batch, Ready
from inference.process import supervision
from inference.process.supervision import BACK_OFF_SECONDS, EngineProcess
from tests.unit.inference_process.serving import Caller, submit
from tests.unit.inference_process.test_supervision import eventually, named, spawn


class Mortal(EngineProcess):
    """A supervisor whose processes end as the test says, at once; it notes how long it waits between."""

    def __init__(self, ends: list[Ended], max_restarts: int = 0) -> None:
        super().__init__(EngineConfig(max_restarts=max_restarts))
        self._ends = ends
        self.loaded = True
        self.pauses: list[float] = []
        self._stopping.wait = self._note  # type: ignore[method-assign, assignment]

    def _run_one(self) -> Ended:
        ended = self._ends.pop(0)
        if not self._ends:
            self._stopping.set()
        return ended

    def _note(self, seconds: float) -> bool:
        self.pauses.append(seconds)
        return False


def test_pauses_double_to_a_minute_and_begin_anew_after_steady_service(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(supervision, "BACK_OFF_SECONDS", BACK_OFF_SECONDS)
    short, steady = Ended(-9, 5.0, None), Ended(-9, 100.0, None)
    process = Mortal([short] * 3 + [Ended(1, None, "no memory")] * 6 + [steady, short, steady, short])
    process._supervise()
    process.stop()
    assert process.pauses == [1, 2, 4, 8, 16, 32, 60, 60, 60, 1, 2, 1]
    assert process.failure is None


def test_an_engine_that_serves_nothing_is_given_up_after_so_many_restarts() -> None:
    in_vain, useful = Ended(-9, 100.0, None), Ended(-9, 5.0, None, served=True)
    process = Mortal([useful, in_vain, useful, in_vain, in_vain, in_vain, in_vain], max_restarts=3)
    lives: list[Life] = []
    process.watch(lives.append)
    process._supervise()
    assert lives == [Life.DOWN] * 5 + [Life.GONE]
    assert process.failure is not None
    assert "given up: started again 3 times, which `max_engine_restarts` sets" in process.failure
    process.stop()


def test_one_that_has_served_a_token_says_so_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "BACK_OFF_SECONDS", (0.01,))
    process, lives = spawn(replace(named("good"), max_restarts=1)), list[Life]()
    process.watch(lives.append)
    process.start()
    process.wait(lambda line: None)
    for number in (1, 2):
        serve_and_kill(process, number)
        eventually(partial(have_come, lives, number + 1))
    assert process.failure is None
    process.stop()


def have_come(lives: list[Life], engines: int) -> bool:
    return lives.count(Life.UP) == engines


def serve_and_kill(process: EngineProcess, number: int) -> None:
    """Have it answer a request, give its next sign of life, and end."""
    caller = Caller(process.address)
    eventually(lambda: isinstance(caller.receive(), Ready))
    caller.send(submit(number, tokens=5))
    eventually(lambda: isinstance(caller.receive(), Batch))
    time.sleep(1.2 * watchdog.PULSE_SECONDS)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGKILL)
    caller.close()
