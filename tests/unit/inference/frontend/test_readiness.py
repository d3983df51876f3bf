from __future__ import annotations

import pytest

from inference.frontend import readiness
from inference.frontend.readiness import Readiness
from inference.types import EngineState


class Clock:
    """Stands in for `time`, and passes when the test says so."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(readiness, "time", clock)
    return clock


def told(standing: Readiness) -> tuple[str, float]:
    refusal = standing.refusal()
    return str(refusal), refusal.retry_after


@pytest.mark.parametrize(("seconds", "retry_after"), [(0.1, 1.0), (12.5, 12.5), (500.0, 60.0)])
def test_a_lost_engine_is_expected_back_in_the_time_that_it_took_to_load(
    clock: Clock, seconds: float, retry_after: float
) -> None:
    standing = Readiness()
    standing.begin()
    assert told(standing) == ("The model is loading", 5.0)
    clock.now += seconds
    standing.ready()
    states = [standing.state]
    standing.lost()
    assert [*states, standing.state] == [EngineState.READY, EngineState.LOADING]
    assert told(standing) == ("The engine is being started again", retry_after)
    clock.now += 1000
    standing.ready()
    standing.lost()
    assert told(standing)[1] == retry_after


def test_a_server_that_ends_does_not_begin_again_when_its_engine_does() -> None:
    standing = Readiness()
    standing.ready()
    standing.drain()
    standing.lost()
    standing.ready()
    assert standing.state is EngineState.DRAINING
    assert told(standing) == ("The server shuts down", 10.0)


def test_who_asks_before_a_death_has_been_noted_is_told_of_it() -> None:
    standing = Readiness()
    standing.ready()
    assert told(standing) == ("The engine has failed", 60.0)


def test_failure_is_final() -> None:
    standing = Readiness()
    standing.fail()
    standing.ready()
    standing.drain()
    assert standing.state is EngineState.FAILED
    assert told(standing) == ("The engine has failed", 60.0)
