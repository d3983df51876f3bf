"""Work for a client that has left is cancelled, and only that."""

from __future__ import annotations

import asyncio

import pytest
from starlette.types import Message

from handlers.http.disconnect import UntilDisconnect
from handlers.http.errors import ClientDisconnected


async def never() -> Message:
    await asyncio.Event().wait()
    raise AssertionError


async def leave() -> Message:
    await asyncio.sleep(0)
    return {"type": "http.disconnect"}


def test_the_block_is_cancelled_when_the_client_leaves() -> None:
    async def check() -> None:
        with pytest.raises(ClientDisconnected):
            async with UntilDisconnect(leave):
                await asyncio.Event().wait()
        task = asyncio.current_task()
        assert task is not None
        assert task.cancelling() == 0
        await asyncio.sleep(0)  # no cancellation is left over

    asyncio.run(check())


def test_the_block_can_clean_up() -> None:
    async def check() -> list[str]:
        cleaned = []

        async def work() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0)
                cleaned.append("yes")

        with pytest.raises(ClientDisconnected):
            async with UntilDisconnect(leave):
                await work()
        return cleaned

    assert asyncio.run(check()) == ["yes"]


def test_a_block_that_ends_in_time_ends_as_usual() -> None:
    async def check() -> str:
        async with UntilDisconnect(never):
            await asyncio.sleep(0.05)  # longer than the watch needs to start
        await asyncio.sleep(0)
        return "done"

    assert asyncio.run(check()) == "done"


def test_an_exception_of_the_block_goes_through() -> None:
    async def check() -> None:
        with pytest.raises(KeyError):
            async with UntilDisconnect(never):
                raise KeyError

    asyncio.run(check())


def test_a_cancellation_by_someone_else_stays_one() -> None:
    async def work() -> None:
        async with UntilDisconnect(never):
            await asyncio.Event().wait()

    async def check() -> None:
        task = asyncio.create_task(work())
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(check())
