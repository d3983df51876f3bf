from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import replace

import pytest

from inference.config import EngineConfig
from inference.errors import (
    GenerationFailed,
    ModelUnavailable,
    NotReady,
    Overloaded,
)
from inference.fakes.core import fake_client
from inference.frontend.client import EngineClient
from inference.step_stats import StepStats
from inference.types import EngineState, FinishReason, Frame, ModelInfo, Request
from tests.unit.inference.puppet import (
    MODEL,
    TOKENIZER,
    Puppet,
    load_text,
    with_puppet,
)


def test_permits_are_counted_until_they_are_released() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        two = client.admit(2)
        with pytest.raises(Overloaded) as refusal:
            client.admit(2)
        assert 1 <= refusal.value.retry_after <= 60
        with client.admit():
            pass
        two.release()
        two.release()
        client.admit(3)
        with pytest.raises(Overloaded):
            client.admit()

    with_puppet(check, max_concurrent_requests=3)


def test_nothing_is_admitted_before_the_model_is_loaded() -> None:
    client = EngineClient(Puppet(), EngineConfig(), load_text)
    assert client.state is EngineState.LOADING
    with pytest.raises(NotReady, match="loading"):
        client.admit()
    with pytest.raises(NotReady):
        _ = client.model
    with pytest.raises(NotReady):
        asyncio.run(client.tokenize("a"))
    with pytest.raises(NotReady):
        asyncio.run(client.decode([1]))
    with pytest.raises(NotReady):
        _ = client.tool_format
    with pytest.raises(NotReady):
        _ = client.template_names
    assert asyncio.run(client.probe()) is False


def test_a_model_that_cannot_be_loaded_leaves_the_engine_failed() -> None:
    async def run() -> None:
        client = fake_client(unavailable="no such model")
        with pytest.raises(ModelUnavailable, match="no such model"):
            await client.start(lambda message: None)
        assert client.state is EngineState.FAILED
        with pytest.raises(NotReady, match="failed"):
            client.admit()
        await client.close()

    asyncio.run(run())


def test_any_error_of_loading_becomes_model_unavailable() -> None:
    class Broken(Puppet):
        def load(self, progress: Callable[[str], None]) -> ModelInfo:
            raise MemoryError("no room")

    client = EngineClient(Broken(), EngineConfig(), load_text)
    with pytest.raises(ModelUnavailable, match="MemoryError: no room"):
        asyncio.run(client.start(lambda message: None))


@pytest.mark.parametrize(("rows", "warned"), [(TOKENIZER.vocabulary_size, False), (20, True)])
def test_a_tokenizer_larger_than_the_model_is_told_at_the_start(
    rows: int, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    class Small(Puppet):
        def load(self, progress: Callable[[str], None]) -> ModelInfo:
            return replace(MODEL, vocabulary_size=rows)

    async def run() -> None:
        client = EngineClient(Small(), EngineConfig(), load_text)
        await client.start(lambda message: None)
        await client.close()

    asyncio.run(run())
    assert ("embedding has only 20 rows: prompts with ids beyond are refused" in caplog.text) is warned


def test_listeners_get_the_numbers_of_each_step() -> None:
    stats = StepStats(
        prefill_tokens=3,
        decode_sequences=1,
        admitted=1,
        cached_tokens=2,
        forward_seconds=0.1,
        sample_seconds=0.01,
        waiting=0,
        running=2,
        kv_tokens=9,
        preempted=0,
    )

    async def check(client: EngineClient, core: Puppet) -> None:
        heard: list[StepStats] = []
        client.add_listener(heard.append)
        core.sink(Frame((), stats))
        core.sink(Frame(()))
        await asyncio.sleep(0)
        assert heard == [stats]

    with_puppet(check)


def test_draining_waits_for_what_runs_though_others_have_ended_before() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        first = await client.submit(Request(id="a", prompt="Hi"))
        core.say("a", "x", FinishReason.LENGTH)
        await first.collect()
        second = await client.submit(Request(id="b", prompt="Hi"))
        drained = asyncio.create_task(client.drain(60))
        await asyncio.sleep(0.01)
        core.say("b", "x", FinishReason.LENGTH)
        assert (await second.collect())[-1].finish is not None
        await drained

    with_puppet(check)


def test_events_that_came_before_a_failure_are_handed_out_first() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi"))
        core.say("a", "xy")
        core.fail("a")
        await asyncio.sleep(0)
        assert [event.delta for event in await generation.next_batch()] == ["x", "y"]
        with pytest.raises(GenerationFailed):
            await generation.next_batch()

    with_puppet(check)
