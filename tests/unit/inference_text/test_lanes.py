from __future__ import annotations

import asyncio
import gc
import json
import threading
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.errors import TextsOverloaded
from inference.text.lanes import (
    LARGE_SIZE,
    MOST_COUNTED,
    SHORT_TEXTS,
    SHORT_TEXTS_SIZE,
    UNCOUNTED_SIZE,
    WAITING_SIZE,
    Lanes,
    size_of,
)

LARGE = LARGE_SIZE + 1


class Held:
    """Work that keeps its thread until the test lets it go."""

    def __init__(self, at_a_time: int = 1) -> None:
        self.lanes = Lanes(workers=1, large=at_a_time)
        self.may_end = threading.Event()
        self.begun: list[str] = []
        self.first = threading.Event()

    def start(self, name: str, size: int = LARGE) -> asyncio.Task[None]:
        """Ask for work that counts as so many characters."""

        def work() -> None:
            self.begun.append(name)
            self.first.set()
            assert self.may_end.wait(60)

        return asyncio.ensure_future(self.lanes.run(work, size))

    async def begin(self) -> asyncio.Task[None]:
        """Let the first one have the thread."""
        first = self.start("first")
        assert await asyncio.to_thread(self.first.wait, 60)
        return first

    def run(self, test: Coroutine[Any, Any, None]) -> None:
        """Run a test, and let go of the thread whatever comes of it."""
        try:
            asyncio.run(test)
        finally:
            self.may_end.set()
            self.lanes.close()


def test_short_work_never_waits_for_large() -> None:
    held = Held()

    async def test() -> None:
        large = [await held.begin(), held.start("second"), held.start("third")]
        assert await asyncio.wait_for(held.lanes.run(lambda: "short", LARGE_SIZE), 60) == "short"
        assert held.begun == ["first"]
        held.may_end.set()
        await asyncio.gather(*large)
        assert held.begun == ["first", "second", "third"]

    held.run(test())


def test_as_many_large_ones_are_worked_on_at_a_time_as_there_are_threads_for() -> None:
    held = Held(at_a_time=2)

    async def test() -> None:
        large = [held.start(name) for name in ("first", "second", "third")]
        for _ in range(6000):
            if len(held.begun) == 2:
                break
            await asyncio.sleep(0.01)
        assert sorted(held.begun) == ["first", "second"]
        held.may_end.set()
        await asyncio.gather(*large)
        assert held.begun[2:] == ["third"]

    held.run(test())


def test_large_work_beyond_what_may_wait_is_refused_until_some_is_done() -> None:
    held = Held()

    async def test() -> None:
        first = await held.begin()
        waiting = [held.start("second", WAITING_SIZE - LARGE), held.start("third")]
        await asyncio.sleep(0)
        with pytest.raises(TextsOverloaded) as refusal:
            await held.start("fourth")
        assert f"at most {WAITING_SIZE:,} may. Given: {LARGE:,} more: send them again" in str(refusal.value)
        assert refusal.value.retry_after > 0
        waiting.pop().cancel()
        await asyncio.sleep(0)
        waiting.append(held.start("fifth"))
        held.may_end.set()
        await asyncio.gather(first, *waiting)
        assert held.begun == ["first", "second", "fifth"]

    held.run(test())


def test_one_that_is_larger_than_all_that_may_wait_gets_its_turn() -> None:
    held = Held()

    async def test() -> None:
        first, second = await held.begin(), held.start("second", WAITING_SIZE * 2)
        await asyncio.sleep(0)
        held.may_end.set()
        await asyncio.gather(first, second)

    held.run(test())


def test_work_whose_caller_is_gone_still_holds_the_thread_and_only_that() -> None:
    held = Held()

    async def test() -> None:
        first = await held.begin()
        gone = [held.start(f"gone {at}") for at in range(3)]
        last = held.start("last")
        await asyncio.sleep(0)
        for task in (first, *gone):
            task.cancel()
        await asyncio.wait([first, *gone])
        await asyncio.sleep(0.01)
        assert held.begun == ["first"]
        held.may_end.set()
        await last
        assert held.begun == ["first", "last"]

    held.run(test())


@pytest.mark.parametrize(
    ("size", "texts", "words"),
    [
        (
            1,
            SHORT_TEXTS,
            f"{SHORT_TEXTS:,} short texts wait to be read, and at most {SHORT_TEXTS:,} may. Given: 1",
        ),
        (
            LARGE_SIZE,
            SHORT_TEXTS_SIZE // LARGE_SIZE,
            f"characters of short texts wait to be read, and at most {SHORT_TEXTS_SIZE:,} may. "
            f"Given: {LARGE_SIZE:,} more: send them again",
        ),
    ],
)
def test_short_work_beyond_what_may_wait_is_refused_until_some_is_done(
    size: int, texts: int, words: str
) -> None:
    held = Held()

    async def test() -> None:
        waiting = [held.start(f"{at}", size) for at in range(texts)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(held.first.wait, 60)
        with pytest.raises(TextsOverloaded) as refusal:
            await held.start("one more", size)
        assert words in str(refusal.value)
        assert refusal.value.retry_after > 0
        large = held.start("large")  # has threads of its own
        held.may_end.set()
        await asyncio.gather(large, *waiting)
        await held.start("later", size)
        assert held.begun[-1] == "later"
        assert len(held.begun) == texts + 2

    held.run(test())


def test_short_work_whose_caller_is_gone_counts_until_a_thread_has_passed_it_over() -> None:
    held = Held()

    async def test() -> None:
        waiting = [held.start(f"{at}", 1) for at in range(SHORT_TEXTS)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(held.first.wait, 60)
        for task in waiting:
            task.cancel()
        await asyncio.wait(waiting)
        with pytest.raises(TextsOverloaded):
            await held.start("too early", 1)
        held.may_end.set()
        for _ in range(6000):
            try:
                await held.start("later", 1)
                break
            except TextsOverloaded:
                await asyncio.sleep(0.01)
        assert held.begun == ["0", "later"]

    held.run(test())


@pytest.mark.parametrize(("size", "times"), [(1, SHORT_TEXTS + 1), (LARGE, 3)], ids=["short", "large"])
def test_what_fails_makes_room_for_the_next(size: int, times: int) -> None:
    lanes = Lanes(workers=1)

    def fail() -> None:
        raise ValueError("no")

    async def test() -> None:
        for _ in range(times):
            with pytest.raises(ValueError, match="no"):
                await asyncio.wait_for(lanes.run(fail, size), 60)
        lanes.close()
        for _ in range(2):
            with pytest.raises(RuntimeError):
                await asyncio.wait_for(lanes.run(fail, size), 60)

    asyncio.run(test())


class Counted(list[Any]):
    """A list that knows how many of its items were looked at."""

    seen = 0

    def __iter__(self) -> Iterator[Any]:
        for item in super().__iter__():
            self.seen += 1
            yield item


def test_what_has_more_values_than_are_counted_counts_as_the_largest_there_is() -> None:
    many = Counted([{}] * 100_000)
    assert size_of(many) >= UNCOUNTED_SIZE
    assert many.seen <= MOST_COUNTED + 1
    assert size_of(many, ["x" * UNCOUNTED_SIZE] * 2) > 2 * UNCOUNTED_SIZE


TEXTS = st.text(max_size=50)
JSON = st.recursive(
    st.none() | st.integers(0, 9) | TEXTS,
    lambda inner: st.lists(inner) | st.dictionaries(st.sampled_from("abc"), inner),
)


@given(st.lists(JSON, max_size=20))
def test_every_character_and_every_value_counts(values: list[Any]) -> None:
    written = json.dumps(values, ensure_ascii=False)
    most = written.count(",") + written.count(":") + len(written)
    assert size_of(*values) >= sum(map(texts, values)) + len(values)
    assert size_of(*values) <= 64 * most


def texts(value: Any) -> int:
    """Return how many characters the texts in a value have."""
    if isinstance(value, str):
        return len(value)
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return sum(map(texts, inner))


def test_short_work_whose_caller_is_gone_is_no_error_in_the_log() -> None:
    held = Held()
    told: list[Any] = []

    async def test() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
        waiting = [held.start(f"{at}", 1) for at in range(2)]
        await asyncio.sleep(0)
        assert await asyncio.to_thread(held.first.wait, 60)
        waiting[1].cancel()
        await asyncio.wait(waiting[1:])
        held.may_end.set()
        await waiting[0]
        await held.start("later", 1)  # the thread has passed over the second
        await asyncio.sleep(0)
        gc.collect()

    held.run(test())
    assert held.begun == ["0", "later"]
    assert told == []
