"""Whoever puts something in never waits; what is lost is counted and announced, in its place."""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from handlers.serving.outbox import PIPE_BYTES, Outbox

ROOT = Path(__file__).parents[4]
PATIENCE_SECONDS = 30
LIMIT = 10_000


def announce(dropped: int) -> bytes:
    return b"<%d dropped>\n" % dropped


class Pipe:
    """A pipe that holds one page, and an outbox that writes to it."""

    def __init__(self) -> None:
        self.reading, self.writing = os.pipe()
        fcntl.fcntl(self.writing, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self.outbox = Outbox(self.writing, LIMIT, announce)

    def fill(self) -> None:
        """Have it hold as much as it can."""
        os.write(self.writing, b"full\n".rjust(PIPE_BYTES))

    def read(self, end: bytes) -> bytes:
        """Read until that has come."""
        found = b""
        while not found.endswith(end):
            found += os.read(self.reading, 65_536)
        return found

    def close(self) -> None:
        self.outbox.close()
        os.close(self.reading)
        assert self.outbox.flush(PATIENCE_SECONDS)
        os.close(self.writing)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    pipe = Pipe()
    yield pipe
    pipe.close()


def test_pieces_come_whole_and_in_order_from_any_thread(pipe: Pipe) -> None:
    def send(name: bytes) -> None:
        for at in range(60):
            pipe.outbox.put(b"%s %d %s\n" % (name, at, b"x" * 50))

    threads = [threading.Thread(target=send, args=(name,)) for name in (b"a", b"b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    pipe.outbox.put(b"end\n")
    lines = pipe.read(b"end\n").splitlines()[:-1]
    for name in (b"a", b"b"):
        assert [line for line in lines if line.startswith(name)] == [
            b"%s %d %s" % (name, at, b"x" * 50) for at in range(60)
        ]


def test_what_finds_no_room_is_dropped_counted_and_announced_when_it_flows_again(pipe: Pipe) -> None:
    counts: list[int] = []
    pipe.fill()
    for at in range(300):  # 100 bytes each: three times the limit
        pipe.outbox.put(b"%099d\n" % at)
        if at == 200:
            pipe.outbox.tell_dropped(counts.append)  # what was dropped before counts, too
    assert sum(counts) == 200
    pipe.read(b"full\n")
    *kept, announcement = pipe.read(b"dropped>\n").splitlines(keepends=True)
    assert [int(line) for line in kept] == list(range(100))
    assert announcement == announce(200)
    pipe.outbox.put(b"more\n")
    assert pipe.read(b"more\n") == b"more\n"
    assert pipe.outbox.flush(PATIENCE_SECONDS)


def test_one_piece_larger_than_the_limit_is_not_lost(pipe: Pipe) -> None:
    large = b"x" * (3 * LIMIT) + b"\n"
    pipe.outbox.put(large)
    assert pipe.read(b"\n") == large


def test_the_end_waits_for_a_reader_only_so_long(pipe: Pipe) -> None:
    pipe.outbox.put(b"x" * 2 * PIPE_BYTES + b"\n")
    assert not pipe.outbox.flush(0.05)
    pipe.outbox.close()
    pipe.outbox.put(b"too late\n")
    assert pipe.read(b"dropped>\n") == b"x" * 2 * PIPE_BYTES + b"\n" + announce(1)
    assert pipe.outbox.flush(PATIENCE_SECONDS)


def test_a_full_disk_loses_lines_and_nothing_else(tmp_path: Path) -> None:
    counts: list[int] = []
    descriptor = os.open("/dev/full", os.O_WRONLY)
    outbox = Outbox(descriptor, LIMIT, announce)
    outbox.tell_dropped(counts.append)
    for _ in range(5):
        outbox.put(b"line\n")
        assert outbox.flush(PATIENCE_SECONDS)
    assert sum(counts) == 5
    found = os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)
    os.dup2(found, descriptor)  # there is room again
    outbox.put(b"again\n")
    assert outbox.flush(PATIENCE_SECONDS)
    outbox.close()
    for each in (found, descriptor):
        os.close(each)
    assert (tmp_path / "log").read_bytes() == b"again\n<5 dropped>\n"


def test_a_pipe_that_does_not_wait_is_waited_for(pipe: Pipe) -> None:
    os.set_blocking(pipe.writing, False)
    pipe.outbox.put(b"x" * 2 * PIPE_BYTES + b"\n")
    assert pipe.read(b"\n") == b"x" * 2 * PIPE_BYTES + b"\n"


def test_a_forked_process_writes_what_is_put_there_and_nothing_of_its_parents() -> None:
    """In a process of its own: in this one, other threads may hold what the child would wait for."""
    code = f"from {__name__} import fork; fork()"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=2 * PATIENCE_SECONDS, check=True)


def fork() -> None:
    """Have a child put something in beside its parent; raise AssertionError unless both come once."""
    pipe = Pipe()
    pipe.fill()
    pipe.outbox.put(b"parent\n")
    child = os.fork()
    if not child:
        pipe.outbox.put(b"child\n")
        os._exit(not pipe.outbox.flush(PATIENCE_SECONDS))
    found = b""
    while found.count(b"\n") < 3:
        found += os.read(pipe.reading, 65_536)
    assert sorted(found.split()) == [b"child", b"full", b"parent"]
    assert os.waitpid(child, 0)[1] == 0
    pipe.close()
