"""Places that several processes share: never one too many, and none lost with a process that dies."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.frontend.places import COUNT_BYTES, OwnPlaces, Places, SharedPlaces
from inference.frontend.shared import SharedMemory

ROOT = Path(__file__).parents[4]
LIMIT = 5
TAKER = f"""
import sys
from inference.frontend.places import SharedPlaces
from inference.frontend.shared import SharedMemory
descriptor, slots, slot = map(int, sys.argv[1:])
memory = SharedMemory(descriptor, 8 * slots)
places = SharedPlaces(memory, slot)
most = 0
print("ready", flush=True)
sys.stdin.readline()
for turn in range(3000):
    count = 1 + turn % 3
    if places.take(count, {LIMIT}):
        with memory.locked():  # nobody takes between the reading of one count and of the next
            most = max(most, places.taken)
        places.give(count)
print(most, flush=True)
sys.stdin.readline()  # what follows passes the limit
places.take(2, 10**6)
print("held", flush=True)
sys.stdin.readline()
"""


def shared(slots: int) -> list[SharedPlaces]:
    memory = SharedMemory.create(slots * COUNT_BYTES)
    return [SharedPlaces(memory, slot) for slot in range(slots)]


@pytest.fixture
def takers() -> Iterator[tuple[SharedPlaces, list[subprocess.Popen[str]]]]:
    """Start three processes that share places; gives our view of them, and the processes."""
    memory = SharedMemory.create(3 * COUNT_BYTES)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", TAKER, str(memory.descriptor), "3", str(slot)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(memory.descriptor,),
        )
        for slot in range(3)
    ]
    yield SharedPlaces(memory, 0), processes
    for process in processes:
        process.kill()
        process.communicate()


def read(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().strip()


def wake(process: subprocess.Popen[str]) -> None:
    assert process.stdin is not None
    process.stdin.write("\n")
    process.stdin.flush()


def test_processes_that_take_at_once_never_take_one_too_many(
    takers: tuple[SharedPlaces, list[subprocess.Popen[str]]],
) -> None:
    places, processes = takers
    assert [read(process) for process in processes] == ["ready"] * 3
    for process in processes:
        wake(process)
    most = [int(read(process)) for process in processes]
    assert 0 < max(most) <= LIMIT
    for process in processes:
        wake(process)
    assert [read(process) for process in processes] == ["held"] * 3
    assert places.taken == 6


def test_what_a_killed_process_had_is_given_back(
    takers: tuple[SharedPlaces, list[subprocess.Popen[str]]],
) -> None:
    places, processes = takers
    for process in processes:
        wake(process)
        wake(process)
    while read(processes[1]) != "held":
        pass
    processes[1].send_signal(signal.SIGKILL)
    processes[1].wait()
    for process in (processes[0], processes[2]):
        while read(process) != "held":
            pass
    places.vacate(1)
    assert places.taken == 4
    assert places.take(1, 5)  # no lock was left behind
    assert not places.take(1, 5)


@given(
    limit=st.integers(1, 6),
    turns=st.lists(st.tuples(st.integers(0, 2), st.booleans(), st.integers(1, 3)), max_size=40),
)
def test_shared_places_count_as_ones_own_do(limit: int, turns: list[tuple[int, bool, int]]) -> None:
    own: Places = OwnPlaces()
    slots = shared(3)
    held: list[list[int]] = [[], [], []]
    for slot, takes, count in turns:
        if takes:
            taken = own.take(count, limit)
            assert slots[slot].take(count, limit) is taken
            held[slot] += [count] * taken
        elif held[slot]:
            count = held[slot].pop()
            own.give(count)
            slots[slot].give(count)
        assert own.taken == sum(map(sum, held)) == slots[0].taken <= limit
