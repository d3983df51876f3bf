"""Places of owners that several processes share: counted as one process would, given back for the dead."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.frontend.owners import Owners, OwnOwners, SharedOwners
from inference.frontend.rows import WAYS


def shared(slots: int, limit: int = 10) -> list[SharedOwners]:
    memory = SharedOwners.create(slots, limit)
    return [SharedOwners(memory, slots, slot) for slot in range(slots)]


@given(
    limit=st.integers(1, 6),
    turns=st.lists(
        st.tuples(st.integers(0, 2), st.sampled_from("abc"), st.booleans(), st.integers(1, 3)), max_size=40
    ),
)
def test_shared_owners_count_as_ones_own_do(limit: int, turns: list[tuple[int, str, bool, int]]) -> None:
    own: Owners = OwnOwners()
    slots = shared(3)
    held: dict[tuple[int, str], list[int]] = {}
    for slot, owner, takes, count in turns:
        counts = held.setdefault((slot, owner), [])
        if takes:
            others = sum(sum(each) for (_, name), each in held.items() if name == owner)
            taken = own.take(owner, count, limit)
            assert taken is (not others or others + count <= limit)
            assert slots[slot].take(owner, count, limit) is taken
            counts += [count] * taken
        elif counts:
            count = counts.pop()
            own.give(owner, count)
            slots[slot].give(owner, count)


def test_what_a_process_had_that_has_ended_is_given_back() -> None:
    first, second = shared(2)
    assert first.take("a", 2, 3)
    assert second.take("a", 1, 3)
    assert not second.take("a", 1, 3)
    first.vacate(0)
    assert second.take("a", 2, 3)
    assert not first.take("a", 1, 3)


def test_owners_come_and_go_without_end_and_those_who_have_something_stay() -> None:
    (table,) = shared(1, limit=2)
    assert table.take("stays", 1, 1)
    for number in range(20 * WAYS):
        assert table.take(f"{number}", 1, 1)
        table.give(f"{number}", 1)
    assert not table.take("stays", 1, 1)


def test_who_finds_no_row_is_refused() -> None:
    (table,) = shared(1, limit=1)
    taken = [table.take(f"{number}", 1, 1) for number in range(WAYS + 1)]
    assert taken == [True] * WAYS + [False]
    table.give("0", 1)
    assert table.take("one more", 1, 1)
