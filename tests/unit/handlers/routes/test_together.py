from __future__ import annotations

import asyncio

import pytest

from handlers.routes.together import side_by_side, together
from inference.errors import ContextExceeded, GenerationFailed, GrammarRefused, InvalidInput, Overloaded

pytestmark = pytest.mark.anyio


async def give(value: int, turns: int = 0) -> int:
    for _ in range(turns):
        await asyncio.sleep(0)
    return value


async def fail(error: Exception) -> int:
    await asyncio.sleep(0)
    raise error


async def test_results_come_in_the_order_of_the_jobs() -> None:
    assert await together("x", [give(1, 3), give(2), give(3, 1)]) == [1, 2, 3]


async def test_the_first_failure_ends_the_others_and_names_its_job() -> None:
    ended: list[str] = []

    async def wait() -> int:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("ended")
        return 0

    with pytest.raises(GrammarRefused, match=r"^instances\[1\]: too deep$"):
        await together("instances", [wait(), fail(GrammarRefused("too deep"))])
    assert ended == ["ended"]


async def test_a_single_job_needs_no_name() -> None:
    with pytest.raises(InvalidInput, match=r"^too long$"):
        await together("instances", [fail(InvalidInput("too long"))])


async def test_jobs_that_are_no_elements_fail_without_a_name() -> None:
    assert await side_by_side([give(1, 3), give(2)]) == [1, 2]
    with pytest.raises(InvalidInput, match=r"^too long$"):
        await side_by_side([give(1, 5), fail(InvalidInput("too long"))])


@pytest.mark.parametrize("error", [Overloaded(1.0), GenerationFailed("out of memory")])
async def test_what_is_not_the_callers_fault_stays_as_it_is(error: Exception) -> None:
    with pytest.raises(type(error)) as raised:
        await together("instances", [give(1, 5), fail(error)])
    assert raised.value is error


async def test_a_prompt_that_is_too_long_still_says_how_long_it_may_be() -> None:
    with pytest.raises(ContextExceeded, match=r"^instances\[1\]: 9 tokens$") as raised:
        await together("instances", [give(1, 5), fail(ContextExceeded("9 tokens", limit=8, given=9))])
    assert raised.value.limit == 8
