"""The numbers of several processes."""

from __future__ import annotations

from handlers.metrics.board import Board
from inference.frontend.shared import SharedMemory


def shared(rows: int, width: int) -> tuple[Board, Board]:
    """Return the board as two processes see it."""
    memory = SharedMemory.create(Board.size(rows, width))
    return Board.of(memory, rows), Board.of(memory, rows)


def test_what_each_process_counts_is_summed_in_any_of_them() -> None:
    one, other = shared(rows=3, width=4)
    one.row(0)[1] += 2
    other.row(2)[1] += 5.5
    other.row(2)[3] += 1
    for board in (one, other):
        assert list(board.sums(0, 4)) == [0, 7.5, 0, 1]
        assert list(board.sums(1, 2)) == [7.5]
        assert board.highest(1) == 5.5


def test_a_row_outlives_the_process_that_wrote_it() -> None:
    memory = SharedMemory.create(Board.size(2, 1))
    Board.of(memory, 2).row(1)[0] += 3
    successor = Board.of(memory, 2)
    successor.row(1)[0] += 1
    assert list(successor.sums(0, 1)) == [4]


def test_a_server_of_one_process_has_a_board_of_its_own() -> None:
    board = Board.own(3)
    assert list(board.sums(0, 3)) == [0, 0, 0]
    board.row(0)[2] = 9
    assert (list(board.sums(1, 3)), board.highest(2)) == ([0, 9], 9)
