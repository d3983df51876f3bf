"""States that are kept: the longest is found, and the one that was asked for least recently goes first."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.kv_cache.snapshots import Snapshots

NAMES = [bytes([each]) for each in range(6)]


def test_longest_state_of_a_text_is_found() -> None:
    snapshots = Snapshots(3)
    assert snapshots.find(NAMES) == 0
    snapshots.keep(NAMES[0])
    snapshots.keep(NAMES[3])
    assert snapshots.find(NAMES) == 4
    assert snapshots.find(NAMES[:3]) == 1
    assert snapshots.find(NAMES[1:3]) == 0


def test_what_is_known_has_its_place_already() -> None:
    snapshots = Snapshots(2)
    place = snapshots.keep(NAMES[0])
    assert snapshots.keep(NAMES[0]) is None
    assert snapshots.use(NAMES[0]) == place


def test_least_recently_used_goes_first() -> None:
    snapshots = Snapshots(2)
    first, second = snapshots.keep(NAMES[0]), snapshots.keep(NAMES[1])
    snapshots.use(NAMES[0])
    assert snapshots.keep(NAMES[2]) == second
    assert snapshots.find(NAMES[1:2]) == 0
    assert snapshots.use(NAMES[0]) == first


@given(st.integers(1, 4), st.lists(st.tuples(st.booleans(), st.sampled_from(NAMES))))
def test_places_are_conserved(places: int, acts: list[tuple[bool, bytes]]) -> None:
    snapshots = Snapshots(places)
    for keeps, name in acts:
        if keeps:
            place = snapshots.keep(name)
            assert place is None or 0 <= place < places
        else:
            snapshots.forget(name)
        assert snapshots.find([name]) == int(keeps)
        assert snapshots.check() == []


def test_lost_place_is_told() -> None:
    snapshots = Snapshots(2)
    snapshots._free.pop()
    assert snapshots.check() == ["2 states have [0]"]


def test_nothing_is_known_once_all_is_forgotten() -> None:
    snapshots = Snapshots(2)
    snapshots.keep(NAMES[0])
    snapshots.clear()
    assert snapshots.find(NAMES) == 0
    assert snapshots.check() == []
