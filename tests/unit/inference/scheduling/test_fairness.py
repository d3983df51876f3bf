from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from inference.scheduling.fairness import FairQueue
from inference.sequences.state import Sequence
from tests.unit.inference.paper_model import request


def waiting(queue: FairQueue, *owners: str, first: int = 1) -> list[Sequence]:
    sequences = [Sequence(request(str(index), 1, 1, owner=owner)) for index, owner in enumerate(owners)]
    for arrival, sequence in enumerate(sequences, first):
        sequence.arrival = arrival
        queue.add(sequence)
    return sequences


def test_order_is_that_of_arrival_among_equals() -> None:
    queue = FairQueue()
    sequences = waiting(queue, "a", "b", "a", "c")
    assert list(queue.candidates()) == sequences
    assert list(queue) == sequences


def test_owner_with_less_running_work_goes_first() -> None:
    queue = FairQueue()
    first, second, third = waiting(queue, "a", "a", "b")
    queue.burden(first, 2)
    queue.burden(third, 1)
    assert list(queue.candidates()) == [third, first, second]


def test_work_of_who_was_admitted_counts_for_the_next_candidate() -> None:
    queue = FairQueue()
    sequences = waiting(queue, "a", "a", "b", "b")
    admitted = []
    for sequence in queue.candidates():
        queue.remove(sequence)
        queue.burden(sequence, 3)
        admitted.append(sequence)
    assert admitted == [sequences[0], sequences[2], sequences[1], sequences[3]]
    assert len(queue) == 0


def test_who_stays_is_not_asked_again_and_the_one_behind_is() -> None:
    queue = FairQueue()
    sequences = waiting(queue, "a", "a", "a")
    asked = []
    for sequence in queue.candidates():
        asked.append(sequence)
        if sequence is sequences[1]:
            queue.remove(sequence)
    assert asked == sequences
    assert list(queue) == [sequences[0], sequences[2]]


def test_sequence_that_comes_back_takes_its_old_place() -> None:
    queue = FairQueue()
    first, second, third = waiting(queue, "a", "a", "a")
    queue.remove(second)
    queue.add(second)
    assert list(queue.candidates()) == [first, second, third]


@given(st.lists(st.sampled_from("abc"), max_size=12), st.data())
def test_everyone_is_asked_once_and_owners_keep_their_order(owners: list[str], data: st.DataObject) -> None:
    queue = FairQueue()
    sequences = waiting(queue, *owners)
    asked = []
    for sequence in queue.candidates():
        asked.append(sequence)
        if data.draw(st.booleans()):
            queue.remove(sequence)
            queue.burden(sequence, data.draw(st.integers(1, 5)))
    assert sorted(asked, key=lambda each: each.arrival) == sequences
    for owner in "abc":
        own = [sequence.arrival for sequence in asked if sequence.request.owner == owner]
        assert own == sorted(own)


def test_check_says_who_was_left() -> None:
    queue = FairQueue()
    (left,) = waiting(queue, "a")
    assert queue.check() == ["1 wait in 1 lines, work is {}"]
    queue.remove(left)
    assert queue.check() == []
    queue.burden(left, 2)
    assert queue.check() == ["0 wait in 0 lines, work is {'a': 2}"]


def test_who_gives_way_is_the_newest_of_the_owner_with_the_most_work() -> None:
    queue = FairQueue()
    few, *many, last = waiting(queue, "few", "many", "many", "many", "few")
    for sequence in (*many, few, last):
        queue.burden(sequence, 2)
    assert queue.last_of((few, *many, last)) is many[-1]
    queue.burden(last, 3)
    assert queue.last_of((few, *many, last)) is last


def test_who_gives_way_is_the_newest_where_owners_work_as_much_and_where_there_is_one() -> None:
    queue = FairQueue()
    first, second, third, fourth = waiting(queue, "a", "b", "a", "b")
    for sequence in (first, second, third, fourth):
        queue.burden(sequence, 2)
    assert queue.last_of((first, second, third, fourth)) is fourth
    assert queue.last_of((third, first)) is third


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 9)), min_size=2, max_size=9))
def test_who_came_first_never_gives_way_to_others(held: list[tuple[str, int]]) -> None:
    queue = FairQueue()
    sequences = waiting(queue, *(owner for owner, _ in held))
    for sequence, (_, blocks) in zip(sequences, held, strict=True):
        queue.burden(sequence, blocks)
    running = sequences[::-1]
    while len(running) > 1:
        running.remove(queue.last_of(running))
    assert running == sequences[:1]
    assert queue.last_of(running) is sequences[0]
