"""Memory found ahead: enough of it, no more, a little at a time; nothing is lost of blocks in use."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.cpu import prefault
from inference.cpu.prefault import AHEAD_BYTES, AHEAD_TOKENS, FIRST_BYTES, FIRST_TOKENS, Prefault
from inference.kernels.arena import HUGE_PAGE, map_zeros
from inference.kv_cache.blocks import PAGE
from tests.resident import TELLS, owned, resident

told = pytest.mark.skipif(not TELLS, reason="only Linux tells")
BLOCKS = 2 * AHEAD_TOKENS // PAGE
SHAPES = {"small": [PAGE * 768], "large": [PAGE * 46_080], "many": [PAGE * 768] * 60, "uneven": [900, 9000]}


def cache(sizes: list[int], blocks: int = BLOCKS) -> list[Tensor]:
    """Return arrays of blocks of so many bytes, which have no memory yet."""
    return [map_zeros(blocks * size).view(blocks, size) for size in sizes]


@told
@pytest.mark.parametrize("populates", [True, False])
@pytest.mark.parametrize("sizes", SHAPES.values(), ids=SHAPES)
def test_memory_is_there_for_the_first_tokens_and_then_for_more(
    sizes: list[int], populates: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefault, "_MADVISE", prefault._MADVISE if populates else None)
    arrays = cache(sizes)
    found = Prefault(arrays)
    check(arrays, min(FIRST_TOKENS // PAGE, FIRST_BYTES // sum(sizes)))
    while found.advance(0):
        pass
    ahead = min(AHEAD_TOKENS // PAGE, AHEAD_BYTES // sum(sizes))
    check(arrays, ahead)
    for array in arrays:
        assert owned(array) >= ahead * array[0].nbytes


@told
@settings(deadline=None, max_examples=10)
@given(marks=st.lists(st.integers(0, 300), max_size=5), stops=st.integers(0, 9))
def test_memory_stays_ahead_of_the_blocks_in_use_wherever_these_begin_again(
    marks: list[int], stops: int
) -> None:
    arrays = cache([PAGE * 8192] * 3, 300)
    with patch.multiple(prefault, FIRST_TOKENS=PAGE, AHEAD_TOKENS=64 * PAGE):
        found = Prefault(arrays)
    for mark in marks:  # the books may be begun anew: it falls then
        for _ in range(stops):  # a request may come in between
            found.advance(mark)
        for array in arrays:
            array[:mark] = 1
    last = marks[-1] if marks else 0
    while found.advance(last):
        pass
    check(arrays, min(300, max(last, *marks, 0) + 64), at_least=min(300, last + 64))


def check(arrays: list[Tensor], blocks: int, at_least: int | None = None) -> None:
    """Fail if there isn't memory for so many blocks, or for more than them and a huge page of each array."""
    for array in arrays:
        least = array[0].nbytes * (blocks if at_least is None else at_least)
        assert least <= resident(array) <= blocks * array[0].nbytes + 2 * HUGE_PAGE


@given(
    populates=st.booleans(),
    sizes=st.lists(st.integers(1, 70), min_size=1, max_size=4),
    blocks=st.integers(1, 9),
    marks=st.lists(st.integers(0, 9), max_size=6),
)
def test_what_blocks_in_use_hold_is_never_changed(
    populates: bool, sizes: list[int], blocks: int, marks: list[int]
) -> None:
    arrays = [torch.randint(256, (blocks, size), dtype=torch.uint8) for size in sizes]
    madvise = prefault._MADVISE if populates else None
    with patch.multiple(prefault, FIRST_TOKENS=2 * PAGE, AHEAD_TOKENS=3 * PAGE, _MADVISE=madvise):
        found = Prefault(arrays)
        for mark in sorted(marks):
            for array in arrays:
                array[:mark] = 7
            found.advance(mark)
            assert all((array[:mark] == 7).all() for array in arrays)


@told
@pytest.mark.parametrize("size", [PAGE * 768, 3 * HUGE_PAGE], ids=["small", "large"])
def test_one_call_finds_a_huge_page_at_most(size: int) -> None:
    arrays = cache([size] * 3, 64)
    with patch.multiple(prefault, FIRST_TOKENS=0, AHEAD_TOKENS=64 * PAGE, AHEAD_BYTES=1 << 40):
        found = Prefault(arrays)
    before = 0
    for _ in range(64):
        assert found.advance(0) or size < HUGE_PAGE
        after = sum(map(resident, arrays))
        assert after <= before + HUGE_PAGE
        before = after


def test_a_cache_without_arrays_needs_nothing() -> None:
    assert not Prefault([]).advance(0)
    assert not Prefault([torch.empty(0, 8)]).advance(0)
