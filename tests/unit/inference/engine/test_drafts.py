from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.engine.drafts import Drafts, propose, with_guesses
from inference.sequences.state import Decodes, Integers, Sequence, SlotTable, pack
from tests.unit.inference.paper_model import request


def array(*ids: int) -> Integers:
    return np.array(ids, dtype=np.int64)


def drafted(*guesses: tuple[int, ...], length: int = 5) -> Drafts:
    """Return a step of a text for each of the guesses, () for none, all of one length."""
    table, decodes = SlotTable(8, 4), Decodes()
    for at in range(len(guesses)):
        sequence = Sequence(request(str(at), length, 9))
        table.enter(sequence)
        decodes.add(sequence)
    return with_guesses(pack(table, decodes), {at: array(*each) for at, each in enumerate(guesses) if each})


@pytest.mark.parametrize(
    ("ids", "most", "guess"),
    [
        ((1, 2, 3, 9, 8, 1, 2, 3), 2, [9, 8]),
        ((1, 2, 3, 9, 7, 2, 3, 8, 1, 2, 3), 2, [9, 7]),  # three in a row before the latest two
        ((7, 2, 3, 8, 9, 2, 3, 5, 4, 2, 3), 2, [5, 4]),  # the latest of two places
        ((1, 2, 9, 1, 2), 7, [9, 1, 2, 9, 1, 2, 9]),  # on, as if it repeated itself
        ((5, 5, 5), 4, [5, 5, 5, 5]),
        ((1, 2, 3, 2), 3, []),  # one token alone says too little
        ((1, 2), 3, []),
        ((1,), 3, []),
    ],
)
def test_what_followed_the_same_tokens_is_the_guess(
    ids: tuple[int, ...], most: int, guess: list[int]
) -> None:
    assert guess == propose(array(*ids), most).tolist()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=30), st.integers(1, 9))
def test_a_guess_follows_an_earlier_place_that_ends_alike(ids: list[int], most: int) -> None:
    guess = propose(array(*ids), most).tolist()
    alike = [end for end in range(2, len(ids)) if ids[end - 2 : end] == ids[-2:]]
    assert bool(guess) == bool(alike)
    if guess:
        assert len(guess) == most
        assert any((ids + guess)[end : end + most] == guess for end in alike)


def test_guesses_lie_behind_the_newest_token_of_their_text() -> None:
    drafts = drafted((), (11, 12), (), (13,))
    pieces = drafts.pieces
    newest = [int(sequence.ids[-1]) for sequence in pieces.decodes]
    assert pieces.ids.tolist() == [newest[0], newest[1], 11, 12, newest[2], newest[3], 13]
    assert pieces.positions.tolist() == [4, 4, 5, 6, 4, 4, 5]
    assert pieces.starts.tolist() == [4, 4, 4, 4]
    assert pieces.stops.tolist() == [5, 7, 5, 6]
    assert pieces.rows.tolist() == list(range(7))
    assert drafts.firsts.tolist() == [0, 1, 4, 5]
    assert (drafts.count, drafts.deepest) == (3, 2)
    assert all(each.dtype == np.int64 for each in (pieces.ids, pieces.positions, pieces.rows, pieces.stops))


def test_texts_are_right_as_long_as_each_guess_was_chosen() -> None:
    drafts = drafted((11, 12), (13,), (), (15, 16))
    table, decodes = drafts.pieces.table, drafts.pieces.decodes
    slots = np.array([sequence.slot for sequence in decodes])
    table.append(slots, array(11, 40, 41, 15))
    first, rows = drafts.confirmed(1)
    assert first == (decodes[0], decodes[3])
    assert rows.tolist() == [1, 7]
    table.append(slots[[0, 3]], array(12, 42))
    second, rows = drafts.confirmed(2)
    assert second == (decodes[0],)
    assert rows.tolist() == [2]
    table.append(slots[:1], array(43))
    assert drafts.hits() == [2, 0, 1]


def test_a_text_that_went_astray_stays_so_though_a_later_guess_would_be_right() -> None:
    drafts = drafted((11, 12), (21, 22))
    table, slots = drafts.pieces.table, np.array([each.slot for each in drafts.pieces.decodes])
    table.append(slots, array(12, 21))
    assert drafts.confirmed(1)[0] == drafts.pieces.decodes[1:]
    table.append(slots[1:], array(22))
    assert drafts.confirmed(2)[0] == drafts.pieces.decodes[1:]


def test_a_text_that_has_ended_goes_on_by_no_guess() -> None:
    drafts = drafted((11,))
    (sequence,) = drafts.pieces.decodes
    drafts.pieces.table.append(np.array([sequence.slot]), array(11))
    assert drafts.confirmed(1)[0] is drafts.pieces.decodes
    drafts.pieces.table.leave(sequence)
    assert drafts.confirmed(1)[0] == ()
