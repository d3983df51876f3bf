from __future__ import annotations

import asyncio

import pytest

from inference.text.encodings import Encodings

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


class Encoder:
    """Counts how often it is asked, and waits until it may answer."""

    def __init__(self, *, free: bool = True) -> None:
        self.calls = 0
        self.may = asyncio.Event()
        if free:
            self.may.set()

    async def __call__(self) -> list[int]:
        self.calls += 1
        await self.may.wait()
        return [self.calls]


async def test_who_comes_while_a_text_is_encoded_or_right_after_gets_the_same() -> None:
    encodings, encoder, text = Encodings(), Encoder(free=False), "".join(["a", "b"])
    several = [asyncio.create_task(encodings.get(text, True, encoder)) for _ in range(3)]
    await asyncio.sleep(0)
    encoder.may.set()
    assert await asyncio.gather(*several) == [[1]] * 3
    assert await encodings.get(text, True, encoder) == [1]
    assert encoder.calls == 1


async def test_texts_that_are_only_equal_are_encoded_each() -> None:
    encodings, encoder = Encodings(), Encoder()
    one, other = "".join(["a", "b"]), "".join(["a", "b"])
    assert await encodings.get(one, True, encoder) == [1]
    assert await encodings.get(other, True, encoder) == [2]
    assert await encodings.get(other, False, encoder) == [3]


async def test_who_is_cancelled_leaves_the_work_to_the_next() -> None:
    encodings, encoder, text = Encodings(), Encoder(free=False), "text"
    first = asyncio.create_task(encodings.get(text, True, encoder))
    await asyncio.sleep(0)
    second = asyncio.create_task(encodings.get(text, True, encoder))
    await asyncio.sleep(0)
    first.cancel()
    encoder.may.set()
    assert await second == [2]
    assert first.cancelled()


async def test_what_fails_is_tried_again_by_the_next() -> None:
    encodings, encoder = Encodings(), Encoder()

    async def fail() -> list[int]:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await encodings.get("text", True, fail)
    assert await encodings.get("text", True, encoder) == [1]
    assert not encodings._turns
