"""The soak's judge: only a fault of its time that may bring an end about explains it."""

from __future__ import annotations

import pytest

from benchmarks.soak_faults import FAULTS, Fault
from benchmarks.soak_judge import AFTER_SECONDS, NO_FAULT, Judge
from tests.faults.ledger import Answer, End

KILLED, ENGINE, RAISES, MEMORY, STORM = (
    next(each for each in FAULTS if word in each.name)
    for word in ("worker killed", "engine killed", "raises", "no memory", "disconnect")
)
LOST = Answer(End.LOST, status=200)
FAILED = Answer(End.FAILED, status=424)
BROKEN = Answer(End.FAILED, status=500)
FULL = Answer(End.OVERLOADED, status=429)
AWAY = Answer(End.UNAVAILABLE, status=503)


def judge(*faults: Fault) -> Judge:
    """Return one that knows of faults from second 100 to 110."""
    made = Judge()
    for fault in faults:
        made.open(fault, 100.0).ended = 110.0
    return made


def told(value: object) -> str:
    """Return a name that is the same in every process, as none of sets and functions is."""
    match value:
        case Fault():
            return value.name
        case Answer():
            return f"{value.end.name} {value.status}"
        case _:
            return str(value)


@pytest.mark.parametrize(
    ("fault", "answer", "explained"),
    [
        (KILLED, LOST, True),
        (KILLED, AWAY, True),
        (KILLED, FAILED, False),
        (ENGINE, FAILED, True),
        (ENGINE, AWAY, True),
        (ENGINE, BROKEN, False),
        (ENGINE, LOST, False),
        (RAISES, FAILED, False),
        (RAISES, LOST, False),
        (MEMORY, FAILED, False),
        (STORM, FULL, True),
        (STORM, LOST, False),
        (STORM, AWAY, False),
    ],
    ids=told,
)
def test_a_fault_explains_the_ends_that_it_may_bring_about(
    fault: Fault, answer: Answer, explained: bool
) -> None:
    assert explained == (judge(fault).wrong("chat", answer, 105.0) == "")


@pytest.mark.parametrize(
    ("at", "explained"), [(99.0, False), (100.0, True), (110.0 + AFTER_SECONDS, True), (114.0, False)]
)
def test_a_fault_explains_nothing_before_it_and_later(at: float, explained: bool) -> None:
    assert explained == (judge(KILLED).wrong("stream", LOST, at) == "")


def test_a_fault_that_goes_on_explains_what_it_brings_about() -> None:
    made = Judge()
    made.open(ENGINE, 100.0)
    assert made.wrong("whole", FAILED, 1e9) == ""


@pytest.mark.parametrize(
    ("kind", "answer", "right"),
    [
        ("leaves", Answer(End.LEFT, status=200), True),
        ("chat", Answer(End.LEFT, status=200), False),
        ("chat", Answer(End.FINISHED, status=200), True),
        ("invalid", Answer(End.FAILED, status=422), True),
        ("invalid", BROKEN, False),
        ("invalid", Answer(End.FINISHED, status=200), False),
    ],
    ids=str,
)
def test_each_kind_of_request_has_its_own_end(kind: str, answer: Answer, right: bool) -> None:
    assert right == (Judge().wrong(kind, answer, 1.0) == "")


def test_what_was_lost_is_counted_by_fault() -> None:
    made = judge(STORM, KILLED)
    assert [made.wrong("chat", LOST, at) == "" for at in (101.0, 102.0, 200.0)] == [True, True, False]
    assert {KILLED.name: 2, NO_FAULT: 1} == made.lost_by_fault


def test_the_requests_of_a_fault_are_judged_too() -> None:
    made = judge(RAISES)
    told = list(made.wrong_of_fault(RAISES, made.windows[0], [FAILED, Answer(End.FINISHED, status=200)]))
    assert told == ["own request of a step raises: finished (200): "]


def test_errors_of_the_log_need_a_fault_that_logs_errors() -> None:
    lines = [
        "1970-01-01T00:01:45+00:00 ERROR parley: gone\n",
        "1970-01-01T00:03:00+00:00 ERROR parley: why\n",
        "1970-01-01T00:03:00+00:00  WARN parley: so\n",
        "Traceback (most recent call last): ERROR\n",
    ]
    assert [f"log: {lines[1].strip()}"] == list(judge(ENGINE).wrong_in_log(lines))
    assert len(list(judge(STORM).wrong_in_log(lines))) == 2
