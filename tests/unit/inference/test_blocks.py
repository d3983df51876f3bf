from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.blocks import PAGE, BlockPool, blocks_for


@pytest.mark.parametrize(("tokens", "blocks"), [(0, 0), (1, 1), (PAGE, 1), (PAGE + 1, 2), (10 * PAGE, 10)])
def test_blocks_for_rounds_up(tokens: int, blocks: int) -> None:
    assert blocks_for(tokens) == blocks


@given(st.lists(st.integers(0, 5), max_size=30))
def test_blocks_are_conserved_and_held_once(counts: list[int]) -> None:
    pool = BlockPool(12)
    holdings: list[list[int]] = []
    for count in counts:
        if count > pool.free:
            pool.give_back(holdings.pop(0))
            continue
        holdings.append(pool.take(count))
        held = [block for holding in holdings for block in holding]
        assert sorted(held) == sorted(pool.held)
        assert len(held) == len(set(held))
        assert pool.free + len(held) == pool.size


def test_a_block_can_be_given_back_once() -> None:
    pool = BlockPool(2)
    taken = pool.take(1)
    pool.give_back(taken)
    with pytest.raises(KeyError):
        pool.give_back(taken)


def test_more_than_there_are_can_not_be_taken() -> None:
    with pytest.raises(AssertionError):
        BlockPool(2).take(3)
