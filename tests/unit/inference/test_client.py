from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from inference.client import EngineClient
from inference.config import EngineConfig
from inference.errors import (
    InvalidInput,
    ModelUnavailable,
    NotReady,
    Overloaded,
)
from inference.fake import fake_client
from inference.types import (
    EngineState,
    FinishReason,
    Frame,
    ModelInfo,
    Request,
    StepStats,
)
from tests.unit.inference.puppet import (
    TOKENIZER,
    TOO_LONG,
    Puppet,
    load_text,
    with_puppet,
)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(id="a", prompt=""), "`inputs` cannot be empty"),
        (
            Request(id="a", prompt="x", truncate=0),
            "`truncate` must be strictly positive and less than 20. Given: 0",
        ),
        (
            Request(id="a", prompt="x", truncate=21),
            "`truncate` must be strictly positive and less than 20. Given: 21",
        ),
        (Request(id="a", prompt="x", stop=("",)), '`stop` must not contain an empty string. Given: ""'),
        (
            Request(id="a", prompt="x" * 10, max_new_tokens=21),
            TOO_LONG.format(prompt=10, new=21),
        ),
        (
            Request(id="a", prompt="x" * 31),
            TOO_LONG.format(prompt=31, new=0),
        ),
        (
            Request(id="a", prompt="x" * 10, max_new_tokens=5000),
            TOO_LONG.format(prompt=10, new=1024),
        ),
        (
            Request(id="a", prompt="x" * 21, max_new_tokens=1),
            "`inputs` must have less than 20 tokens. Given: 21",
        ),
    ],
)
def test_a_request_out_of_its_limits_is_refused_in_the_words_of_tgi(request_: Request, message: str) -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        with pytest.raises(InvalidInput) as refusal:
            await client.submit(request_)
        assert str(refusal.value) == message
        assert core.requests == []

    with_puppet(check)


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "truncate", "ids", "budget"),
    [
        ("x" * 20, 10, None, 20, 10),
        ("x" * 5, None, None, 5, 25),
        ("x" * 40, 5, 8, 8, 5),
        ("x" * 3, 5, 20, 3, 5),
    ],
)
def test_a_request_within_its_limits_is_queued(
    prompt: str, max_new_tokens: int | None, truncate: int | None, ids: int, budget: int
) -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(
            Request(id="a", prompt=prompt, max_new_tokens=max_new_tokens, truncate=truncate)
        )
        (queued,) = core.requests
        assert (len(queued.prompt_ids), queued.max_new_tokens) == (ids, budget)
        assert generation.prompt_tokens == ids

    with_puppet(check)


def test_truncation_keeps_the_end_of_the_prompt() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        await client.submit(Request(id="a", prompt="abcdef", truncate=2))
        assert list(core.requests[0].prompt_ids) == TOKENIZER.encode("ef", add_special_tokens=False)

    with_puppet(check)


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


def test_after_a_failure_health_takes_a_real_generation() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        assert await client.probe() is True
        assert core.requests == []
        await client.submit(Request(id="a", prompt="Hi"))
        core.fail("a")
        await asyncio.sleep(0)
        probes = [asyncio.create_task(client.probe()) for _ in range(3)]
        await core.submitted(2)
        request = core.requests[1]
        assert request.max_new_tokens == 1
        core.say(request.id, "x", FinishReason.LENGTH)
        assert await asyncio.gather(*probes) == [True] * 3
        assert await client.probe() is True
        assert len(core.requests) == 2  # one generation answered all of them

    with_puppet(check)


def test_health_is_bad_while_the_generation_fails_or_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.client.PROBE_SECONDS", 0.01)

    async def check(client: EngineClient, core: Puppet) -> None:
        await client.submit(Request(id="a", prompt="Hi"))
        core.fail("a")
        await asyncio.sleep(0)
        assert await client.probe() is False  # nothing comes
        assert core.aborted == [core.requests[1].id]
        assert await client.probe() is False

    with_puppet(check)


def test_listeners_get_the_numbers_of_each_step() -> None:
    stats = StepStats(
        prefill_tokens=3,
        decode_sequences=1,
        admitted=1,
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
