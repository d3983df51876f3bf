"""Free pages: whichever are given out and come back, the books hold; a sequence's lie side by side."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.kv_cache.blocks import BlockPool
from inference.kv_cache.free_blocks import RUN, FreeBlocks


@given(size=st.integers(1, 5 * RUN), turns=st.lists(st.integers(0, 9), max_size=60))
def test_blocks_are_given_out_once_until_they_come_back(size: int, turns: list[int]) -> None:
    free, taken, ever = FreeBlocks(size), list[int](), {-1}
    for turn in turns:
        if turn < 6 and len(free):
            after = taken[turn % len(taken)] if taken and turn < 4 else None
            block = free.beside(after)
            block = free.any() if block is None else block
            free.take(block)
            taken.append(block)
            ever.add(block)
        elif taken:
            free.add(taken.pop(turn % len(taken)))
        assert free.high_water == max(ever) + 1
        assert sorted([*free, *taken]) == list(range(size))
        assert len(free) == size - len(taken)
        whole = [run for run in range(size // RUN) if not {*range(run * RUN, run * RUN + RUN)} & {*taken}]
        first = free.beside(None)
        assert (first is not None) == bool(whole)
        assert first is None or (first % RUN == 0 and first // RUN in whole)
        if len(free) and not whole:
            assert free.any() in [*free]


def test_first_blocks_are_given_out_first() -> None:
    assert BlockPool(3 * RUN + 2).take(3 * RUN + 2) == list(range(3 * RUN + 2))


def test_a_block_beside_the_last_one_comes_before_a_run_that_nobody_began() -> None:
    free = FreeBlocks(3 * RUN)
    free.take(0)
    assert free.beside(0) == 1
    assert free.beside(RUN - 1) == RUN
    assert free.beside(3 * RUN - 1) == RUN
    assert free.beside(None) == RUN


def test_a_begun_run_is_given_to_others_when_no_whole_one_is_left() -> None:
    free = FreeBlocks(RUN + 3)
    free.take(0)
    assert free.beside(None) is None
    free.take(free.any())
    assert len(free) == RUN + 1


def runs_of(blocks: list[int]) -> int:
    """Return in how many runs of adjacent blocks these lie."""
    return 1 + sum(left + 1 != right for left, right in pairwise(blocks))


@pytest.mark.parametrize("known", [False, True], ids=["an empty cache", "a cache full of known contents"])
def test_sequences_that_grow_in_turn_keep_their_blocks_side_by_side(known: bool) -> None:
    pool = BlockPool(4096)
    if known:
        for number in range(64):
            old = pool.take(64)
            for block in old:
                pool.publish(block, b"%d" % block)
            pool.give_back(old)
            assert pool.free == 64 * (63 - number)
    sequences = [pool.take(3) for _ in range(32)]
    for _ in range(61):
        for sequence in sequences:
            sequence += pool.take(1, sequence[-1])
    assert max(runs_of(sequence) for sequence in sequences) <= 64 / RUN
    assert pool.check(sequences) == []


def test_contents_are_forgotten_early_only_by_a_part_of_the_pool() -> None:
    pool = BlockPool(1024)
    blocks = pool.take(1024)
    for block in blocks:
        pool.publish(block, b"%d" % block)
    for block in reversed(blocks):  # the last of a run waits longest
        pool.give_back([block])
    held = [pool.take(1) for _ in range(100)]
    assert pool.idle >= 1024 - 100 - 1024 // 16
    assert pool.find([b"%d" % block for block in range(pool.idle)]) == list(
        range(pool.idle)
    )  # the longest waiting went
    assert pool.check(held) == []
