"""Rows that several processes share: a name has the same one in all, and what says least goes."""

from __future__ import annotations

import select
import signal
import subprocess
import sys
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.frontend.rows import SECRET_BYTES, WAYS, Row, SharedRows

ROOT = Path(__file__).parents[4]
COUNTER = """
import sys, time
from inference.frontend.rows import SharedRows
from inference.frontend.shared import SharedMemory
rows = SharedRows(SharedMemory.inherited(int(sys.argv[1])), 2, lambda row: row[0])
for turn in range(1000):
    with rows.row(f"{turn % 5}") as row:
        row[0] += 1
with rows.row("0"):
    print("has it", flush=True)
    time.sleep(60)
"""


def sum_of(row: Row[float]) -> float:
    return sum(row)


@given(
    turns=st.lists(st.tuples(st.booleans(), st.text(max_size=4), st.floats(1, 9)), max_size=60),
    rows=st.sampled_from([1024, 1000]),
)
def test_a_name_has_the_same_numbers_in_all_processes(
    turns: list[tuple[bool, str, float]], rows: int
) -> None:
    memory = SharedRows.create(rows, 3)
    tables, expected = [SharedRows(memory, 3, sum_of) for _ in range(2)], dict[str, float]()
    for second, name, number in turns:
        expected[name] = expected.get(name, 0.0) + number
        with tables[second].row(name) as row:
            assert row is not None
            row[2] += number
            assert row.tolist() == [0.0, 0.0, expected[name]]


def test_processes_that_count_at_once_lose_nothing_and_one_that_is_killed_keeps_nobody_out() -> None:
    memory = SharedRows.create(WAYS, 2)
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", COUNTER, str(memory.descriptor)],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            text=True,
            pass_fds=(memory.descriptor,),
        )
        for _ in range(2)
    ]
    running = {each.stdout: each for each in processes if each.stdout is not None}
    while running:  # the second comes to its end once the first is gone
        ready, *_ = select.select(list(running), [], [], 60)
        has_it = running.pop(ready[0])
        has_it.send_signal(signal.SIGKILL)
        has_it.communicate()
    table, counted = SharedRows(memory, 2, sum_of), list[float]()
    for name in range(5):
        with table.row(f"{name}") as row:
            assert row is not None
            counted.append(row[0])
    assert counted == [400.0] * 5


def test_what_costs_least_to_forget_makes_room() -> None:
    table = SharedRows(SharedRows.create(WAYS, 1), 1, sum_of)
    for at in range(WAYS):
        with table.row(f"{at}") as row:
            assert row is not None
            row[0] = at + 1.0
    with table.row("new") as row:
        assert row is not None
        assert row.tolist() == [0.0]
        row[0] = 100.0
    for at in range(1, WAYS):
        with table.row(f"{at}") as row:
            assert row is not None
            assert row[0] == at + 1.0


def test_where_nothing_may_be_forgotten_there_is_no_room() -> None:
    table = SharedRows(SharedRows.create(WAYS, 1), 1, lambda row: inf if row[0] else 0.0)
    for at in range(WAYS):
        with table.row(f"{at}") as row:
            assert row is not None
            row[0] = 1.0
    with table.row("new") as row:
        assert row is None
    table.clear(0)
    with table.row("new") as row:
        assert row is not None


@pytest.mark.parametrize("column", [0, 1])
def test_a_column_is_cleared_and_no_other(column: int) -> None:
    table = SharedRows(SharedRows.create(4 * WAYS, 2), 2, sum_of)
    for name in "abc":
        with table.row(name) as row:
            assert row is not None
            row[0] = row[1] = 5.0
    table.clear(column)
    for name in "abc":
        with table.row(name) as row:
            assert row is not None
            assert row.tolist() == ([0.0, 5.0], [5.0, 0.0])[column]


def test_whose_rows_lie_together_is_nobodys_to_find_out() -> None:
    first, second = (bytes(SharedRows.create(WAYS, 1).view()[:SECRET_BYTES]) for _ in range(2))
    assert first != second
