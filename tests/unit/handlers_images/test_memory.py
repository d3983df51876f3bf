"""What requests hold of images together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from handlers.images.memory import Memory
from inference.errors import ImagesOverloaded


@given(st.lists(st.integers(0, 60), max_size=20))
def test_no_more_is_held_than_may_be_and_all_is_given_back(sizes: list[int]) -> None:
    memory = Memory(100)
    with memory.hold() as first, memory.hold() as second:
        for at, size in enumerate(sizes):
            before = memory.held
            try:
                (first, second)[at % 2].more(size)
            except ImagesOverloaded:
                assert before + size > 100
                assert memory.held == before
            assert memory.held <= 100
    assert memory.held == 0


def test_what_is_larger_than_all_of_it_is_let_in_alone() -> None:
    memory = Memory(100)
    with memory.hold(200), pytest.raises(ImagesOverloaded, match="200 bytes of images are held"):
        memory.hold(1)
    assert memory.held == 0


def test_a_body_is_held_once_it_is_past_its_limit_whatever_it_grows_to() -> None:
    memory = Memory(100)
    with memory.hold() as hold:
        for size, held in ((10, 0), (20, 0), (21, 21), (50, 50), (50, 50)):
            hold.beyond(20, size)
            assert memory.held == held
    assert memory.held == 0


def test_who_asks_for_nothing_is_let_in_however_much_is_held() -> None:
    memory = Memory(100)
    with memory.hold(200), memory.hold() as text:
        text.more(0)
        assert memory.held == 200
