from __future__ import annotations

import pytest

from inference.admission import COMPLETIONS_REMEMBERED, Admission
from inference.errors import InvalidInput, Overloaded


class Clock:
    """Time that passes when the test says so."""

    def __init__(self) -> None:
        self.now = 1000.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr("inference.admission.time", made)
    return made


def complete(admission: Admission, clock: Clock, times: int, seconds: float) -> None:
    for _ in range(times):
        admission.admit(1).release()
        clock.now += seconds


@pytest.mark.parametrize(
    ("seconds_each", "sequences", "retry_after"),
    [(2, 1, 2), (2, 4, 8), (0.01, 1, 1), (30, 4, 60)],
)
def test_the_time_to_come_back_follows_recent_completions(
    clock: Clock, seconds_each: float, sequences: int, retry_after: float
) -> None:
    admission = Admission(100, lambda: None)
    complete(admission, clock, 10, seconds_each)
    assert admission.retry_after(sequences) == pytest.approx(retry_after)


def test_old_completions_are_forgotten(clock: Clock) -> None:
    admission = Admission(100, lambda: None)
    complete(admission, clock, 5, 1000)
    complete(admission, clock, COMPLETIONS_REMEMBERED, 3)
    assert admission.retry_after(1) == pytest.approx(3)


def test_without_completions_it_is_a_second(clock: Clock) -> None:
    assert Admission(1, lambda: None).retry_after(1) == 1


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
