"""Memory found ahead: enough of it, a little at a time, and nothing lost of what is in use."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from inference import prefault
from inference.blocks import PAGE
from inference.kernels.arena import HUGE_PAGE, map_zeros
from inference.prefault import AHEAD_TOKENS, FIRST_BYTES, FIRST_TOKENS, Prefault
from tests.resident import TELLS, resident

USED, UNTOUCHED = 1, 2  # what blocks hold that are in use, or that nothing was found for


@pytest.mark.parametrize("sizes", [(1,), (3, 5), (HUGE_PAGE // 4, 1), (HUGE_PAGE + 3, 7)], ids=str)
@given(blocks=st.integers(1, 9), reaches=st.lists(st.integers(0, 9), max_size=6), stops=st.integers(0, 9))
def test_so_many_blocks_behind_those_in_use_are_found_and_none_of_these_lost(
    sizes: tuple[int, ...], blocks: int, reaches: list[int], stops: int
) -> None:
    arrays = [torch.full((blocks, size), UNTOUCHED, dtype=torch.uint8) for size in sizes]
    with patch.multiple(prefault, FIRST_TOKENS=PAGE, AHEAD_TOKENS=3 * PAGE, AHEAD_BYTES=1 << 30):
        found = Prefault(arrays)
    piece = max(1, HUGE_PAGE // max(sizes))
    assert known(arrays) == [min(blocks, piece)] * len(arrays)
    reached = 0
    for reach in sorted(min(reach, blocks) for reach in reaches):
        for array in arrays:
            array[reached:reach] = USED
        reached = reach
        for _ in range(stops):  # a request may come in between
            found.advance(reached)
        assert all((array[:reached] == USED).all() for array in arrays)
    while found.advance(reached):
        pass
    assert all((array[:reached] == USED).all() for array in arrays)
    assert all(min(reached + 3, blocks) <= upto for upto in known(arrays))
    assert not any(upto >= reached + 3 + piece for upto in known(arrays) if upto < blocks)


def known(arrays: list[Tensor]) -> list[int]:
    """Return up to which block each array was written to."""
    return [int((array[:, 0] != UNTOUCHED).sum()) for array in arrays]


@given(size=st.integers(1, 3 * HUGE_PAGE))
def test_one_call_finds_about_a_huge_page(size: int) -> None:
    arrays = [torch.empty((4, size), dtype=torch.uint8)]
    with patch.multiple(prefault, FIRST_TOKENS=0, AHEAD_TOKENS=4 * PAGE, AHEAD_BYTES=1 << 30):
        found = Prefault(arrays)
    arrays[0].fill_(UNTOUCHED)
    assert found.advance(0)
    assert int((arrays[0] == 0).sum()) == min(4 * size, max(size, HUGE_PAGE // size * size))


@pytest.mark.skipif(not TELLS, reason="only Linux tells")
@pytest.mark.parametrize("size", [PAGE * 768, PAGE * 46_080], ids=["small", "large"])
def test_memory_is_there_for_the_first_tokens_and_then_for_more(size: int) -> None:
    blocks = 2 * AHEAD_TOKENS // PAGE
    array = map_zeros(blocks * size).view(blocks, size)
    found = Prefault([array])
    first = min(FIRST_TOKENS // PAGE * size, FIRST_BYTES)
    assert first <= resident(array) + size < first + 2 * (HUGE_PAGE + size)
    while found.advance(0):
        pass
    ahead = min(AHEAD_TOKENS // PAGE * size, prefault.AHEAD_BYTES)
    assert ahead <= resident(array) + size < ahead + 2 * (HUGE_PAGE + size)


def test_a_cache_without_arrays_needs_nothing() -> None:
    assert not Prefault([]).advance(0)
    assert not Prefault([torch.empty(0, 8)]).advance(0)
