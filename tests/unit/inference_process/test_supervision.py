"""Real processes, with an engine that needs no torch: what becomes of them, and of their parents."""

from __future__ import annotations

import errno
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.config import EngineConfig, ModelConfig
from inference.core import Life
from inference.errors import ModelUnavailable
from inference.ipc import watchdog
from inference.ipc.ended import Ended, describe
from inference.ipc.messages import Ready
from inference.process import supervision
from inference.process.supervision import EngineProcess
from tests.processes import gone
from tests.unit.inference_process.fake_engine import HANGING, PROGRAM
from tests.unit.inference_process.serving import Caller, submit

SECONDS = 30.0
ROOT = Path(__file__).parents[3]


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "BACK_OFF_SECONDS", (0.01, 0.02, 0.04))


def engine(name: str = "good") -> EngineProcess:
    return spawn(named(name))


def named(name: str) -> EngineConfig:
    return EngineConfig(model=ModelConfig(model_id=name))


def spawn(config: EngineConfig) -> EngineProcess:
    return EngineProcess(config, program=PROGRAM)


@pytest.fixture
def running() -> Iterator[EngineProcess]:
    process = engine()
    process.start()
    process.wait(lambda line: None)
    yield process
    process.stop()


def eventually(condition: Callable[[], object], seconds: float = SECONDS) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.01)


def test_it_is_loaded_and_stopped_and_leaves_nothing_behind(caplog: pytest.LogCaptureFixture) -> None:
    process, lines, lives = engine(), list[str](), list[Life]()
    directory = Path(process.address).parent
    assert directory.is_dir()
    assert not process.alive
    process.watch(lives.append)
    process.start()
    model = process.wait(lines.append)
    assert (model.id, process.alive) == ("good", True)
    assert lines == ["looking for good", "nothing to load"]
    pid = process.pid
    assert pid is not None
    assert not gone(pid)
    process.stop()
    process.stop()
    assert gone(pid)
    assert not directory.exists()
    assert lives == [Life.UP, Life.GONE]
    assert not [record for record in caplog.records if record.levelno >= logging.ERROR]


def test_its_log_and_its_output_come_out_of_the_parents_log(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "inference")
    process = engine()
    process.start()
    process.wait(lambda line: None)
    process.stop()
    said = [(record.name, record.levelno, record.getMessage()) for record in caplog.records]
    assert ("inference.fake_engine", logging.INFO, "loading good") in said
    assert ("stderr.engine", logging.WARNING, "written to standard output") in said


def test_a_model_that_is_unavailable_is_told_once_and_nothing_is_started_again() -> None:
    process = engine("missing")
    lives: list[Life] = []
    process.watch(lives.append)
    process.start()
    with pytest.raises(ModelUnavailable, match="there is no such model"):
        process.wait(lambda line: None)
    eventually(lambda: lives == [Life.GONE])
    assert not Path(process.address).exists()
    process.stop()


def test_the_garbage_collector_does_not_look_at_what_was_loaded(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "inference")
    process = engine()
    process.start()
    process.wait(lambda line: None)
    process.stop()
    assert "what was loaded is frozen" in caplog.messages


def test_an_error_of_loading_is_a_model_that_is_unavailable(caplog: pytest.LogCaptureFixture) -> None:
    process = engine("raises")
    process.start()
    with pytest.raises(ModelUnavailable, match="MemoryError: no room"):
        process.wait(lambda line: None)
    process.stop()
    assert "fake_engine.py" in caplog.text  # the traceback of the other process


def test_repeated_death_while_loading_is_a_model_that_is_unavailable() -> None:
    process = engine("dies")
    process.start()
    with pytest.raises(ModelUnavailable, match=r"ended 3 times while it loaded the model: exit code 7"):
        process.wait(lambda line: None)
    process.stop()


def test_who_waits_hears_why_though_another_has_gone_meanwhile() -> None:
    process = EngineProcess(named("good"), program=("-c", "raise SystemExit(5)"))
    gone = Caller(process.address)
    gone.close()
    waiting = Caller(process.address)
    process.start()
    assert "exit code 5" in waiting.receive().message
    eventually(lambda: not Path(process.address).exists())
    waiting.close()
    process.stop()


def test_a_machine_without_room_for_a_process_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.ENOMEM, "Cannot allocate memory")

    monkeypatch.setattr(subprocess, "Popen", refuse)
    process = engine()
    process.start()
    with pytest.raises(ModelUnavailable, match=r"can't be started: .*Cannot allocate memory"):
        process.wait(lambda line: None)
    process.stop()


def test_a_setting_that_can_not_be_sent_is_told() -> None:
    process = EngineProcess(named("\udcff"))
    process.start()
    with pytest.raises(ModelUnavailable, match=r"can't be started: .*surrogates not allowed"):
        process.wait(lambda line: None)
    process.stop()


def test_a_process_that_can_not_be_made_for_a_while_is_made_later(
    running: EngineProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, lives, refused = subprocess.Popen, list[Life](), list[OSError]()

    def refuse_once(*given: Any, **named: Any) -> object:
        if refused:
            return make(*given, **named)
        refused.append(BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"))
        raise refused[0]

    running.watch(lives.append)
    monkeypatch.setattr(subprocess, "Popen", refuse_once)
    assert running.pid is not None
    os.kill(running.pid, signal.SIGKILL)
    eventually(lambda: lives == [Life.DOWN, Life.DOWN, Life.UP])
    assert len(refused) == 1


def test_a_killed_engine_is_started_again_on_the_same_address(running: EngineProcess) -> None:
    lives: list[Life] = []
    running.watch(lives.append)
    first, address = running.pid, running.address
    assert first is not None
    os.kill(first, signal.SIGKILL)
    eventually(lambda: lives == [Life.DOWN, Life.UP])
    assert running.pid != first
    assert running.address == address
    caller = Caller(address)
    eventually(lambda: isinstance(caller.receive(), Ready))
    caller.close()


def hasty(seconds: float) -> EngineProcess:
    return spawn(replace(named("good"), step_timeout=seconds))


def test_a_step_that_does_not_end_has_the_engine_killed_and_started_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    process, lives = hasty(0.5), list[Life]()
    process.watch(lives.append)
    process.start()
    process.wait(lambda line: None)
    caller = Caller(process.address)
    eventually(lambda: isinstance(caller.receive(), Ready))
    caller.send(submit(1, tokens=HANGING))
    assert caller.receive() is None  # the end of its stream: whoever asked is told so
    eventually(lambda: lives == [Life.UP, Life.DOWN, Life.UP])
    process.stop()
    assert "The engine hangs and is killed: a step takes longer than 0.5 s" in caplog.text
    assert "fake_engine.py" in caplog.text  # it said where it hung
    caller.close()


def test_a_stopped_engine_that_has_nothing_to_do_is_missed(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watchdog, "PULSE_SECONDS", 0.1)
    monkeypatch.setattr(supervision, "LAST_WORDS_SECONDS", 0.01)
    process, lives = hasty(1.0), list[Life]()
    process.watch(lives.append)
    process.start()
    process.wait(lambda line: None)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    eventually(lambda: lives == [Life.UP, Life.DOWN, Life.UP])
    process.stop()
    assert "it has given no sign of life for" in caplog.text


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_that_reach_every_process_of_a_service_are_left_to_the_server(
    running: EngineProcess, number: signal.Signals
) -> None:
    pid = running.pid
    assert pid is not None
    os.kill(pid, number)
    caller = Caller(running.address)  # it still answers
    eventually(lambda: isinstance(caller.receive(), Ready))
    caller.close()
    assert (running.pid, running.alive, gone(pid)) == (pid, True, False)
    assert os.getsid(pid) != os.getsid(0)


def test_an_engine_that_does_not_end_is_killed(running: EngineProcess) -> None:
    pid = running.pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    running.stop(seconds=0.1)
    assert gone(pid)


def test_by_hand_it_says_how_it_is_started() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "inference.process"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert "parley serve" in done.stderr


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended(1, None, None), "exit code 1"),
        (Ended(-9, 5.0, None), "SIGKILL: killed, or out of memory"),
        (Ended(-11, 5.0, None), "SIGSEGV"),
        (Ended(-40, 5.0, None), "signal 40"),
        (Ended(3, None, "no such model"), "no such model"),
        (Ended(-9, 5.0, None, "it is silent"), "killed, as it is silent"),
    ],
)
def test_ends_are_described(ended: Ended, words: str) -> None:
    assert describe(ended) == words


def test_a_directory_is_not_left_by_a_server_that_ends_by_an_error() -> None:
    code = """
from inference.config import EngineConfig
from inference.process.supervision import EngineProcess
process = EngineProcess(EngineConfig())
print(process.address, flush=True)
raise SystemExit("an error")
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (1, "an error\n")
    assert not Path(done.stdout.strip()).parent.exists()
