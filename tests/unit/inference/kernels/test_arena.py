"""Pieces of memory for packed weights."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.kernels.arena import HUGE_PAGE, LARGE, LINE, Arena, map_zeros


@given(st.lists(st.integers(1, 5000) | st.just(70 << 20), min_size=1, max_size=8))
def test_pieces_are_zero_aligned_and_apart(sizes: list[int]) -> None:
    arena = Arena()
    pieces = [arena.take(size) for size in sizes]
    assert sizes == [piece.numel() for piece in pieces]
    assert all(piece.data_ptr() % LINE == 0 for piece in pieces)
    for number, piece in enumerate(pieces, start=1):
        assert not piece[:5000].any()
        piece[:5000] = number
    assert all((piece[:5000] == number).all() for number, piece in enumerate(pieces, start=1))


def test_the_first_piece_begins_at_a_huge_page() -> None:
    assert 0 == Arena().take(3).data_ptr() % HUGE_PAGE


@pytest.mark.parametrize("size", [1, LARGE - 1, LARGE, LARGE + 5])
def test_large_maps_alone_begin_at_a_huge_page_and_all_are_zeros(size: int) -> None:
    maps = [map_zeros(size) for _ in range(3)]
    assert all(each.numel() == size and not each.any() for each in maps)
    assert all(each.data_ptr() % HUGE_PAGE == 0 for each in maps) or size < LARGE


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="only Linux tells")
def test_small_maps_take_small_pages() -> None:
    maps = [map_zeros(1 << 20) for _ in range(100)]
    before = resident_pages()
    for each in maps:
        each[0] = 1
    assert resident_pages() - before < 1000  # of 4 KiB: huge ones would be 512 each


def resident_pages() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1])


def test_a_piece_outlives_its_arena() -> None:
    piece = Arena().take(100)
    piece.fill_(7)
    assert (piece == 7).all()
