"""Who asks for other adapters is answered when all processes know of them, and not before."""

from __future__ import annotations

from typing import Any

import pytest

from inference.ipc.framing import Unframer, unpack
from inference.ipc.messages import ENGINE_LIMIT, FROM_ENGINE, Change, Changed, Edition
from inference.process.announcing import Announcements
from inference.types import AdapterChange, AdapterChanged, AdapterEdition
from tests.unit.inference_process.serving import Recorder


class Adapting(Recorder):
    """A core that notes which changes it is asked for, and which editions all have heard of."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[AdapterChange] = []
        self.editions: list[int] = []

    def change(self, change: AdapterChange) -> None:
        self.changes.append(change)

    def heard(self, edition: int) -> None:
        self.editions.append(edition)


class Process:
    """An attached process, as far as it is told something."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.told: list[Any] = []
        self._unframer = Unframer(ENGINE_LIMIT)

    def post(self, frame: bytes) -> None:
        self.told += [unpack(FROM_ENGINE, payload) for payload in self._unframer.feed(frame)]


@pytest.fixture
def core() -> Adapting:
    return Adapting()


@pytest.fixture
def announcements(core: Adapting) -> Announcements:
    found = Announcements()
    found.core = core
    return found


def asks(announcements: Announcements, core: Adapting, process: Any, number: int = 7) -> str:
    """Have a process ask for a change; return what the core calls it."""
    announcements.ask(process, Change(number, "a", "from", False))
    return core.changes[-1].id


def edition(number: int) -> AdapterEdition:
    return AdapterEdition(number, {"a": 65536}, {"a": "from"})


def test_the_answer_waits_for_the_slowest(announcements: Announcements, core: Adapting) -> None:
    asking, other = processes = [Process(1), Process(2)]
    id = asks(announcements, core, asking)
    announcements.tell(edition(1), processes)  # type: ignore[arg-type]
    announcements.answer(AdapterChanged(id))
    announcements.settle()
    announcements.hear(asking, 1)  # type: ignore[arg-type]
    assert [each.told for each in processes] == [[Edition(1, {"a": 65536})]] * 2
    assert core.editions == []
    announcements.hear(other, 1)  # type: ignore[arg-type]
    assert core.editions == [1]
    assert asking.told[1:] == [Changed(7, "", False)]
    assert len(other.told) == 1


def test_one_that_has_gone_is_waited_for_no_more(announcements: Announcements, core: Adapting) -> None:
    asking, other = processes = [Process(1), Process(2)]
    id = asks(announcements, core, asking)
    announcements.tell(edition(1), processes)  # type: ignore[arg-type]
    announcements.answer(AdapterChanged(id))
    announcements.hear(asking, 1)  # type: ignore[arg-type]
    announcements.drop(other)  # type: ignore[arg-type]
    assert core.editions == [1]
    assert asking.told[1:] == [Changed(7, "", False)]


def test_who_asked_and_has_gone_is_told_nothing(announcements: Announcements, core: Adapting) -> None:
    asking, other = Process(1), Process(2)
    id = asks(announcements, core, asking)
    announcements.drop(asking)  # type: ignore[arg-type]
    announcements.tell(edition(1), [other])  # type: ignore[list-item]
    announcements.answer(AdapterChanged(id))
    announcements.hear(other, 1)  # type: ignore[arg-type]
    assert core.editions == [1]
    assert asking.told == []


def test_a_refusal_comes_behind_what_was_told_before(announcements: Announcements, core: Adapting) -> None:
    process = Process(1)
    first, second = (asks(announcements, core, process, number) for number in (1, 2))
    announcements.tell(edition(1), [process])  # type: ignore[list-item]
    announcements.answer(AdapterChanged(first))
    announcements.answer(AdapterChanged(second, "no", missing=True))
    assert len(process.told) == 1
    announcements.hear(process, 1)  # type: ignore[arg-type]
    assert process.told[1:] == [Changed(1, "", False), Changed(2, "no", True)]
    third = asks(announcements, core, process, 3)
    announcements.answer(AdapterChanged(third, "never"))
    assert process.told[3:] == [Changed(3, "never", False)]


def test_who_hears_of_one_has_heard_of_those_before(announcements: Announcements, core: Adapting) -> None:
    process = Process(1)
    for number in (1, 2):
        announcements.tell(edition(number), [process])  # type: ignore[list-item]
    announcements.hear(process, 2)  # type: ignore[arg-type]
    assert core.editions == [1, 2]


def test_nobody_is_waited_for_where_nobody_is(announcements: Announcements, core: Adapting) -> None:
    announcements.tell(edition(1), [])
    announcements.settle()
    assert core.editions == [1]


def test_a_core_that_takes_none_refuses() -> None:
    announcements, process = Announcements(), Process(1)
    announcements.core = Recorder()
    announcements.ask(process, Change(7, "a", "from", False))  # type: ignore[arg-type]
    assert process.told == [Changed(7, "The engine takes no adapters while it runs", False)]
