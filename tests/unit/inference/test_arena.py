"""Pieces of memory for packed weights."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.kernels.arena import HUGE_PAGE, LINE, Arena


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


def test_a_piece_outlives_its_arena() -> None:
    piece = Arena().take(100)
    piece.fill_(7)
    assert (piece == 7).all()
