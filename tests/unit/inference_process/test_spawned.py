"""An engine that its core spawns, and a client over it, from loading to death and back."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from pathlib import Path

import pytest

from inference.config import EngineConfig
from inference.errors import GenerationFailed, ModelUnavailable, NotReady
from inference.frontend.client import EngineClient
from inference.process import supervision
from inference.process.spawned import SpawnedCore
from inference.process.supervision import EngineProcess
from inference.types import EngineState, Request
from tests.processes import gone
from tests.unit.inference.puppet import load_text
from tests.unit.inference_process.test_supervision import SECONDS, named, spawn


@pytest.fixture(autouse=True)
def _quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "BACK_OFF_SECONDS", (0.01, 0.02, 0.04))


def test_whoever_waits_to_attach_hears_why_there_will_be_no_engine() -> None:
    core = SpawnedCore(named("dies"), spawn)
    with pytest.raises(ModelUnavailable, match="ended 3 times"):
        core.load(lambda line: None)
    core.stop()


def test_nothing_is_made_before_it_is_loaded_or_once_it_was_stopped() -> None:
    made: list[EngineConfig] = []

    def make(config: EngineConfig) -> EngineProcess:
        made.append(config)
        return spawn(config)

    core = SpawnedCore(named("good"), make)
    assert not core.alive
    core.stop()
    with pytest.raises(ModelUnavailable, match="stopped while the model was loading"):
        core.load(lambda line: None)
    assert made == []


async def ready(client: EngineClient) -> None:
    async with asyncio.timeout(SECONDS):
        while client.state is not EngineState.READY:  # noqa: ASYNC110 - as a client of the server sees it
            await asyncio.sleep(0.01)


def test_death_under_load_ends_every_request_once_and_service_resumes() -> None:
    async def run() -> None:
        core = SpawnedCore(named("good"), spawn)
        client = EngineClient(core, EngineConfig(), load_text)
        await client.start(lambda line: None)
        generations = [await client.submit(Request(id=str(at), prompt="Hi")) for at in range(20)]
        await asyncio.gather(*(anext(generation) for generation in generations))
        assert core.process.pid is not None
        os.kill(core.process.pid, signal.SIGKILL)
        for generation in generations:
            with pytest.raises(GenerationFailed, match="The engine stopped"):
                await generation.collect()
            with pytest.raises(StopAsyncIteration):
                await anext(generation)
        assert client.state is EngineState.LOADING
        assert await client.probe() is False
        with pytest.raises(NotReady, match="started again") as refusal:
            client.admit()
        assert 1 <= refusal.value.retry_after <= 60
        with pytest.raises(NotReady, match="started again"):
            await client.submit(Request(id="early", prompt="Hi"))
        await ready(client)
        assert await client.probe()
        with client.admit():
            again = await client.submit(Request(id="0", prompt="Hi", max_new_tokens=5))
            assert len(await again.collect()) == 5
        threads = [thread.name for thread in threading.enumerate()]
        await client.close()
        assert "engine-supervisor" in threads
        assert "engine-supervisor" not in [thread.name for thread in threading.enumerate()]

    asyncio.run(run())


def test_closing_while_requests_run_ends_them_and_the_process() -> None:
    async def run() -> None:
        client = EngineClient(core, EngineConfig(), load_text)
        await client.start(lambda line: None)
        generation = await client.submit(Request(id="a", prompt="Hi"))
        await anext(generation)
        await client.close()
        with pytest.raises(GenerationFailed, match="shuts down"):
            await generation.collect()

    core = SpawnedCore(named("good"), spawn)
    asyncio.run(run())
    assert core.process.pid is not None
    assert gone(core.process.pid)
    assert not Path(core.process.address).exists()
