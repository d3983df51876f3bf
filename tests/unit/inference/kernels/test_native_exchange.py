"""Processes are threads here: the memory that they share is the same to C."""

from __future__ import annotations

import ctypes
import mmap
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

pytest.importorskip("torch")

from inference.kernels.native import Library, open_library
from inference.kernels.native_exchange import NativeExchange, exchange_bytes

Result = TypeVar("Result")
PART = 256  # bytes


@pytest.fixture(scope="module")
def library() -> Library:
    found = open_library(threads=1)
    if found is None:
        pytest.skip("the extension isn't built")
    return found


def open_all(library: Library, count: int) -> list[NativeExchange]:
    memory = mmap.mmap(-1, exchange_bytes(library, count, PART))
    return [NativeExchange(library, memory, rank, count, PART) for rank in range(count)]


def together(work: Callable[[int], Result], count: int) -> list[Result]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


def add_up(exchange: NativeExchange, values: NDArray[np.float32]) -> int:
    found = exchange.add_up
    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
    failed: int = function(found.function.value or 0)(found.context, values.ctypes.data, len(values))
    return failed


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 4), st.lists(st.integers(0, 3 * PART), min_size=1, max_size=8), st.integers(0, 99))
def test_all_get_the_sum_in_the_order_of_ranks(
    library: Library, count: int, sizes: list[int], seed: int
) -> None:
    generator = np.random.default_rng(seed)
    given = [generator.standard_normal((count, size), dtype=np.float32) for size in sizes]
    exchanges = open_all(library, count)

    def work(rank: int) -> list[NDArray[np.float32]]:
        own = [each[rank].copy() for each in given]
        assert [add_up(exchanges[rank], each) for each in own] == [0] * len(own)
        return own

    for found in together(work, count):
        for mine, parts in zip(found, given, strict=True):
            expected = parts[0].copy()
            for part in parts[1:]:
                expected += part
            assert mine.tobytes() == expected.tobytes()


def test_each_reads_what_all_have_left(library: Library) -> None:
    exchanges = open_all(library, 3)

    def work(rank: int) -> list[list[bytes]]:
        seen = []
        for turn in range(50):
            own = np.full(1 + (turn + rank) % PART, turn * 3 + rank, dtype=np.uint8)
            parts = exchanges[rank].turn(own)
            seen.append([part[: 1 + (turn + each) % PART].tobytes() for each, part in enumerate(parts)])
        return seen

    expected = [
        [bytes([(turn * 3 + each) % 256]) * (1 + (turn + each) % PART) for each in range(3)]
        for turn in range(50)
    ]
    assert together(work, 3) == [expected] * 3


def test_who_waits_hears_that_another_has_left(library: Library) -> None:
    one, other = open_all(library, 2)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(one.turn, np.zeros(1, dtype=np.uint8))
        other.leave()
        with pytest.raises(EOFError, match="has left"):
            waiting.result(timeout=10)
    assert add_up(one, np.zeros(1, dtype=np.float32)) == -1


def test_memory_for_all_is_asked_for(library: Library) -> None:
    with pytest.raises(AssertionError, match="room for all"):
        NativeExchange(library, mmap.mmap(-1, exchange_bytes(library, 2, PART) - 1), 0, 2, PART)
