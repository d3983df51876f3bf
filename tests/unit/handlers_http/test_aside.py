"""Which bodies are large, and where what is made of them runs."""

from __future__ import annotations

import asyncio
import threading

import pytest

from handlers.http.aside import (
    AT_ONCE,
    LARGE_BYTES,
    MANY_COMMAS,
    MANY_OBJECTS,
    MANY_VALUES,
    OnThread,
    is_large,
    made,
)
from inference.errors import Overloaded
from inference.grammar import meaning
from inference.text.lanes import WAITING_SIZE, Lane


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b"", False),
        (b"x" * LARGE_BYTES, False),
        (b"x" * (LARGE_BYTES + 1), True),
        (b"," * MANY_COMMAS, False),
        (b"," * (MANY_COMMAS + 1), True),
        (b"{" * MANY_OBJECTS, False),
        (b"{" * (MANY_OBJECTS + 1), True),
        (rb"\u007b" * (MANY_OBJECTS + 1), True),  # a schema in a text
        (b'{"format":{"definition":"start: a"}}', True),
        (rb'{"format":{"d\u0065finition":"start: a"}}', True),
        (b'{"input":"its definition"}', False),
    ],
)
def test_a_body_is_large_by_its_bytes_its_values_or_its_objects(raw: bytes, expected: bool) -> None:
    assert is_large(raw) is expected


def test_a_schema_that_may_take_much_work_is_in_a_large_body() -> None:
    assert meaning.MANY_COMMAS >= MANY_COMMAS


def test_a_small_bodys_work_is_done_here_and_a_large_ones_on_a_thread() -> None:
    async def test() -> None:
        lane = Lane("bodies")
        here = threading.get_ident()
        assert await AT_ONCE(threading.get_ident) == here
        assert await AT_ONCE.part(3)(threading.get_ident) == here
        assert await AT_ONCE.on_thread(threading.get_ident) != here
        the_thread = await OnThread(lane, 1)(threading.get_ident)
        assert the_thread != here
        assert await OnThread(lane, 1).on_thread(threading.get_ident) == the_thread
        assert await OnThread(lane, 1).part(3)(threading.get_ident) == the_thread
        lane.close()

    asyncio.run(test())


def test_what_is_wrong_with_a_body_comes_through_from_the_thread() -> None:
    def fail() -> None:
        raise ValueError("no")

    async def test() -> None:
        lane = Lane("bodies")
        with pytest.raises(ValueError, match="no"):
            await OnThread(lane, 1)(fail)
        lane.close()

    asyncio.run(test())


def test_the_parts_of_one_body_wait_as_one() -> None:
    """Each with a share of the size: a body of many parts doesn't count many times."""
    may_end = threading.Event()

    async def test() -> None:
        lane = Lane("bodies")
        whole = OnThread(lane, WAITING_SIZE)
        parts = [asyncio.ensure_future(whole.part(10)(may_end.wait)) for _ in range(11)]
        await asyncio.sleep(0)
        with pytest.raises(Overloaded):
            await whole(may_end.wait)
        may_end.set()
        assert all(await asyncio.gather(*parts))
        lane.close()

    try:
        asyncio.run(test())
    finally:
        may_end.set()


def test_large_answers_are_made_on_a_thread_and_small_ones_here() -> None:
    home = threading.get_ident()
    assert asyncio.run(made(threading.get_ident, MANY_VALUES)) == home
    assert asyncio.run(made(threading.get_ident, MANY_VALUES + 1)) != home
