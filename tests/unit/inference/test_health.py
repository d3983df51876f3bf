from __future__ import annotations

import asyncio

import pytest

from inference.client import EngineClient
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
    monkeypatch.setattr("inference.health.PROBE_SECONDS", 0.01)

    async def check(client: EngineClient, core: Puppet) -> None:
        await client.submit(Request(id="a", prompt="Hi"))
        core.fail("a")
        await asyncio.sleep(0)
        assert await client.probe() is False  # nothing comes
        assert core.aborted == [core.requests[1].id]
        assert await client.probe() is False

    with_puppet(check)
