from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from inference.config import EngineConfig
from inference.shards import cores
from inference.shards.cores import cores_of, of_its_own, stay_on


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(cores, "_NODES", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(16)))
    return tmp_path


def have(machine: Path, *nodes: str) -> None:
    for number, cpus in enumerate(nodes):
        (machine / f"node{number}").mkdir()
        (machine / f"node{number}" / "cpulist").write_text(f"{cpus}\n")


def all_of(count: int) -> list[set[int] | None]:
    return [cores_of(rank, count) for rank in range(count)]


def test_a_shard_has_a_socket(machine: Path) -> None:
    have(machine, "0-3,8-11", "4-7,12-15")
    assert all_of(2) == [{0, 1, 2, 3, 8, 9, 10, 11}, {4, 5, 6, 7, 12, 13, 14, 15}]


def test_a_shard_has_several_sockets_or_several_shards_have_one(machine: Path) -> None:
    have(machine, "0-3", "4-7", "8-11", "12-15")
    assert all_of(2) == [set(range(8)), set(range(8, 16))]
    assert all_of(8) == [{0, 1}, {2, 3}, {4, 5}, {6, 7}, {8, 9}, {10, 11}, {12, 13}, {14, 15}]
    three = all_of(3)
    assert set().union(*filter(None, three)) == set(range(16))
    assert sum(len(each or ()) for each in three) == 16


@pytest.mark.parametrize("nodes", [(), ("0-15",), ("0-15", ""), ("0-15", "16-31"), ("what", "4-7")])
def test_where_there_is_one_socket_all_may_run_anywhere(machine: Path, nodes: tuple[str, ...]) -> None:
    have(machine, *nodes)
    assert all_of(2) == [None, None]


def test_more_shards_than_cores_may_run_anywhere(machine: Path) -> None:
    have(machine, "0-7", "8-15")
    assert all_of(17) == [None] * 17


@pytest.mark.parametrize(("asked", "threads"), [(None, 4), (6, 6)])
def test_a_shard_has_no_more_threads_than_cores_unless_they_were_asked_for(
    asked: int | None, threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cores, "usable_cores", lambda: 4)
    assert of_its_own(6, EngineConfig(threads=asked)) == threads
    assert of_its_own(3, EngineConfig()) == 3


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="Linux alone says where a thread runs")
def test_a_thread_and_those_that_it_starts_stay_on_the_cores_that_they_are_given() -> None:
    one = {min(os.sched_getaffinity(0))}
    seen: list[set[int]] = []

    def work() -> None:
        stay_on(None)
        stay_on(one)
        child = threading.Thread(target=lambda: seen.append(os.sched_getaffinity(0)))
        child.start()
        child.join()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [one]
