"""Memory that is shared by inheriting it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from inference.frontend.shared import SharedMemory

ROOT = Path(__file__).parents[4]
CHILD = """
import sys
from inference.frontend.shared import SharedMemory
numbers = SharedMemory(int(sys.argv[1]), 16).view().cast("q")
numbers[1] = numbers[0] + 1
"""


@pytest.mark.parametrize("named", [False, True])
def test_a_child_that_inherits_it_reads_and_writes_the_same(
    named: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if named:  # as on systems that have no anonymous files
        monkeypatch.delattr(os, "memfd_create", raising=False)
    memory = SharedMemory.create(16)
    numbers = memory.view().cast("q")
    assert list(numbers) == [0, 0]
    numbers[0] = 41
    line = [sys.executable, "-c", CHILD, str(memory.descriptor)]
    subprocess.run(line, cwd=ROOT, pass_fds=(memory.descriptor,), check=True, timeout=60)
    assert list(numbers) == [41, 42]


def test_it_is_not_inherited_by_whoever_is_not_meant() -> None:
    memory = SharedMemory.create(16)
    line = [sys.executable, "-c", CHILD, str(memory.descriptor)]
    done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert "Bad file descriptor" in done.stderr
