"""An engine whose process can't be ended: nobody waits for it, and another one serves."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from inference.config import EngineConfig
from inference.core import Life
from inference.errors import GenerationFailed
from inference.frontend.client import EngineClient
from inference.ipc import watchdog
from inference.process import supervision
from inference.process.spawned import SpawnedCore
from inference.types import Request
from tests.processes import gone
from tests.unit.inference.puppet import load_text
from tests.unit.inference_process.test_spawned import ready
from tests.unit.inference_process.test_supervision import (
    engine,
    eventually,
    named,
    spawn,
)


class Held(subprocess.Popen[bytes]):
    """A process that the kernel holds, as it waits for a disk or a driver: no signal ends it.

    It is stopped, and what should kill it doesn't. Whoever waited for its end without a limit would for ever.
    """

    held, stillborn = True, False

    def wait(self, timeout: float | None = None) -> int:
        if not self.held:
            return super().wait(timeout)
        assert timeout is not None, "it never ends"
        raise subprocess.TimeoutExpired(self.args, timeout)

    def kill(self) -> None:
        if not self.held:
            super().kill()

    def send_signal(self, number: int) -> None:
        """Take no signal."""

    def release(self) -> None:
        self.held = False
        os.kill(self.pid, signal.SIGKILL)
        self.wait()


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "BACK_OFF_SECONDS", (0.01, 0.02, 0.04))


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Held]]:
    """Have the next engine's process be one that can't be ended; gives it once it was started."""
    make, made = subprocess.Popen, list[Held]()

    def hold_first(*given: Any, **named: Any) -> object:
        if made:
            return make(*given, **named)
        made.append(Held(*given, **named))
        if Held.stillborn:
            os.kill(made[0].pid, signal.SIGSTOP)
        return made[0]

    for name in ("LAST_WORDS_SECONDS", "CLOSED_SECONDS", "KILLED_SECONDS"):
        monkeypatch.setattr(supervision, name, 0.05)
    monkeypatch.setattr(subprocess, "Popen", hold_first)
    yield made
    made[0].release()


@contextmanager
def impatience() -> Iterator[None]:
    """Have silence noticed soon, of a process that is stopped; others may be slow."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("SILENT_SECONDS", "PULSE_SECONDS"):
            patch.setattr(watchdog, name, 0.1)
        yield


def test_an_engine_that_can_not_be_ended_is_left_behind_and_another_one_serves(
    held: list[Held], caplog: pytest.LogCaptureFixture
) -> None:
    process, lives = engine(), list[Life]()
    process.watch(lives.append)
    process.start()
    process.wait(lambda line: None)
    os.kill(held[0].pid, signal.SIGSTOP)
    with impatience():
        eventually(lambda: lives == [Life.UP, Life.DOWN])
    eventually(lambda: lives == [Life.UP, Life.DOWN, Life.UP])
    assert process.pid != held[0].pid
    assert not process.held
    assert not gone(held[0].pid)
    process.stop()
    assert f"a disk or driver holds process {held[0].pid}; it is left behind" in caplog.text
    assert "and has not ended); it is started again" in caplog.text


def test_a_server_ends_whose_engine_can_not_be_ended(
    held: list[Held], caplog: pytest.LogCaptureFixture
) -> None:
    process = engine()
    process.start()
    process.wait(lambda line: None)
    os.kill(held[0].pid, signal.SIGSTOP)
    process.stop(seconds=0.05)
    assert not Path(process.address).exists()
    assert process.held
    assert caplog.text.count("it is left behind") == 1


def test_requests_of_an_engine_that_can_not_be_ended_are_told_and_another_one_answers(
    held: list[Held],
) -> None:
    """It keeps its sockets open: nobody could read that it is gone."""

    async def run() -> None:
        core = SpawnedCore(named("good"), spawn)
        client = EngineClient(core, EngineConfig(), load_text)
        await client.start(lambda line: None)
        generation = await client.submit(Request(id="held", prompt="Hi"))
        await anext(generation)
        os.kill(held[0].pid, signal.SIGSTOP)
        with impatience(), pytest.raises(GenerationFailed, match="The engine stopped"):
            await generation.collect()
        assert not gone(held[0].pid)
        await ready(client)
        await anext(await client.submit(Request(id="after", prompt="Hi")))
        await client.close()

    asyncio.run(run())


def test_whoever_waits_for_an_engine_that_is_held_while_it_loads_gets_the_next_one(
    held: list[Held], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watchdog, "LOADING_SILENT_SECONDS", 1.0)
    monkeypatch.setattr(Held, "stillborn", True)
    core, loaded = SpawnedCore(replace(named("good"), step_timeout=1.0), spawn), list[str]()
    loading = threading.Thread(target=lambda: loaded.append(core.load(lambda line: None).id))
    loading.start()
    eventually(lambda: held and core.process.pid not in (None, held[0].pid))
    monkeypatch.setattr(watchdog, "LOADING_SILENT_SECONDS", 600.0)
    loading.join()
    assert loaded == ["good"]
    core.stop()
