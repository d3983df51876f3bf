from __future__ import annotations

import asyncio

import pytest

from inference.errors import GenerationFailed
from inference.frontend.client import EngineClient
from inference.types import FinishReason, Request
from tests.unit.inference.puppet import Puppet, with_puppet


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
    monkeypatch.setattr("inference.frontend.health.PROBE_SECONDS", 0.01)

    async def check(client: EngineClient, core: Puppet) -> None:
        await client.submit(Request(id="a", prompt="Hi"))
        core.fail("a")
        await asyncio.sleep(0)
        assert await client.probe() is False  # nothing comes
        assert core.aborted == [core.requests[1].id]
        assert await client.probe() is False

    with_puppet(check)


def test_after_a_probe_that_failed_the_next_one_is_a_generation_of_its_own() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        await client.submit(Request(id="a", prompt="Hi"))
        core.fail("a")
        await asyncio.sleep(0)
        for at, well in ((1, False), (2, True)):
            probe = asyncio.create_task(client.probe())
            await core.submitted(at + 1)
            if well:
                core.say(core.requests[at].id, "x", FinishReason.LENGTH)
            else:
                core.fail(core.requests[at].id)
            assert await probe is well

    with_puppet(check)


def test_a_failure_by_the_requests_own_grammar_puts_nothing_in_doubt() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi"))
        core.fail("a", own=True)
        with pytest.raises(GenerationFailed):
            await generation.collect()
        assert await client.probe() is True
        assert len(core.requests) == 1

    with_puppet(check)


def test_a_token_of_any_request_ends_the_doubt_and_the_probe_that_waits_behind_it() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        for each in "abc":
            await client.submit(Request(id=each, prompt="Hi"))
        core.fail("a")
        await asyncio.sleep(0)
        probes = [asyncio.create_task(client.probe()) for _ in range(2)]
        await core.submitted(4)
        core.say("b", "x")
        assert await asyncio.gather(*probes) == [True] * 2
        assert core.aborted == [core.requests[3].id]
        core.fail("c")
        core.say("b", "x")
        await asyncio.sleep(0)
        assert await client.probe() is True
        assert len(core.requests) == 4

    with_puppet(check)
