from __future__ import annotations

import pytest

from inference.errors import InvalidInput, Overloaded, OwnerOverloaded
from inference.frontend.admission import DURATIONS_REMEMBERED, Admission
from inference.frontend.owners import SharedOwners
from inference.frontend.places import COUNT_BYTES, SharedPlaces
from inference.frontend.shared import SharedMemory


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("inference.frontend.admission.time", made)
    return made


def complete(admission: Admission, clock: Clock, times: int, seconds: float) -> None:
    for _ in range(times):
        with admission.admit(1):
            clock.now += seconds


def refusal(admission: Admission, sequences: int = 1) -> float:
    """Return the seconds that a refused request is told to wait."""
    with pytest.raises(Overloaded) as refused:
        admission.admit(sequences)
    return refused.value.retry_after


@pytest.mark.parametrize(("sequences", "retry_after"), [(1, 2), (2, 4), (3, 6), (5, 10)])
def test_what_runs_is_taken_to_need_as_long_as_others_did(
    clock: Clock, sequences: int, retry_after: float
) -> None:
    admission = Admission(5, lambda: None)
    complete(admission, clock, 8, 10)
    for _ in range(5):  # one begins every two seconds, and needs ten
        admission.admit(1)
        clock.now += 2
    clock.now -= 2
    assert refusal(admission, sequences) == pytest.approx(retry_after)


def test_room_that_there_is_need_not_be_waited_for(clock: Clock) -> None:
    admission = Admission(4, lambda: None)
    complete(admission, clock, 8, 10)
    for _ in range(3):
        admission.admit(1)
        clock.now += 2
    assert refusal(admission, 2) == pytest.approx(4)  # one place is free: a single one has to end
    assert refusal(admission, 3) == pytest.approx(6)


def test_time_in_which_nothing_was_asked_says_nothing(clock: Clock) -> None:
    admission = Admission(1, lambda: None)
    complete(admission, clock, 10, 5)
    clock.now += 3600
    admission.admit(1)
    assert refusal(admission) == pytest.approx(5)


def test_old_durations_are_forgotten(clock: Clock) -> None:
    admission = Admission(1, lambda: None)
    complete(admission, clock, 5, 1000)
    complete(admission, clock, DURATIONS_REMEMBERED, 3)
    admission.admit(1)
    assert refusal(admission) == pytest.approx(3)


@pytest.mark.parametrize(("age", "retry_after"), [(0, 1), (0.2, 1), (8, 8), (40, 40), (500, 60)])
def test_before_any_has_ended_those_that_run_may_take_as_long_again(
    clock: Clock, age: float, retry_after: float
) -> None:
    admission = Admission(2, lambda: None)
    admission.admit(2)
    clock.now += age
    assert refusal(admission) == pytest.approx(retry_after)


def test_what_takes_longer_than_others_did_may_take_as_long_again(clock: Clock) -> None:
    admission = Admission(1, lambda: None)
    complete(admission, clock, 4, 2)
    admission.admit(1)
    clock.now += 30
    assert refusal(admission) == pytest.approx(30)


def test_what_others_run_is_taken_to_be_like_ones_own(clock: Clock) -> None:
    memory = SharedMemory.create(2 * COUNT_BYTES)
    mine, other = (Admission(6, lambda: None, SharedPlaces(memory, slot)) for slot in range(2))
    complete(mine, clock, 8, 9)
    other.admit(3)
    for _ in range(3):
        mine.admit(1)
        clock.now += 3
    clock.now -= 1
    # ours end in 1, 4 and 7 seconds; of six that have to end, three are ours
    assert [refusal(mine, sequences) for sequences in (1, 2, 4, 6)] == pytest.approx([1, 1, 4, 7])
    assert mine.in_flight == other.in_flight == 3


def test_a_process_without_requests_of_its_own_says_to_come_back_soon(clock: Clock) -> None:
    memory = SharedMemory.create(2 * COUNT_BYTES)
    Admission(1, lambda: None, SharedPlaces(memory, 0)).admit(1)
    assert refusal(Admission(1, lambda: None, SharedPlaces(memory, 1))) == 1


def test_room_that_is_given_back_is_told(clock: Clock) -> None:
    told: list[int] = []
    admission = Admission(2, lambda: told.append(admission.in_flight))
    permit = admission.admit(2)
    with pytest.raises(Overloaded):
        admission.admit(1)
    assert told == []
    permit.release()
    assert told == [0]


def test_more_than_ever_fits_is_refused_rather_than_told_to_come_back() -> None:
    admission = Admission(2, lambda: None)
    with pytest.raises(InvalidInput, match="3 sequences at a time are more than `max_concurrent_requests`"):
        admission.admit(3)
    admission.admit(2)


def test_what_is_asked_for_at_once_may_be_more_than_a_replicas_share_of_an_owners(clock: Clock) -> None:
    admission = Admission(100, lambda: None, per_owner=2, owner_limit=8)
    with admission.admit(4, "one"):
        with pytest.raises(Overloaded, match="share, 2, of `max_concurrent_requests_per_key`, which is 8,"):
            admission.admit(1, "one")
        admission.admit(2, "another")
    with pytest.raises(InvalidInput, match="`max_concurrent_requests_per_key`, which is 8: send"):
        admission.admit(9, "one")


def test_an_owner_may_have_all_its_places_in_one_of_several_processes(clock: Clock) -> None:
    places, owners = SharedMemory.create(2 * COUNT_BYTES), SharedOwners.create(2, 4)
    first, second = (
        Admission(4, lambda: None, SharedPlaces(places, slot), SharedOwners(owners, 2, slot), per_owner=2)
        for slot in range(2)
    )
    held = [first.admit(1, "one") for _ in range(2)]
    for each in (first, second):
        with pytest.raises(
            OwnerOverloaded, match="of this caller as `max_concurrent_requests_per_key`, which is 2"
        ):
            each.admit(1, "one")
    held[0].release()
    second.admit(1, "one")


@pytest.mark.parametrize("shared", [False, True])
def test_who_finds_no_place_has_taken_none_of_its_own(clock: Clock, shared: bool) -> None:
    owners = SharedOwners(SharedOwners.create(1, 3), 1, 0) if shared else None
    admission = Admission(3, lambda: None, None, owners, per_owner=2)
    with admission.admit(2, "others"), pytest.raises(Overloaded, match="Model is overloaded"):
        admission.admit(2, "one")
    admission.admit(2, "one")
