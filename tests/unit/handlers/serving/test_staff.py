"""Workers are replaced when they die, and let go in the end; what they do is no matter here."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest

from handlers.serving import staff as staff_module
from handlers.serving.staff import Worker
from handlers.serving.worker import ALIVE, COMPLETE, READY, Post
from inference.frontend.places import SharedPlaces
from tests.unit.handlers.serving.office import Office, complete, gone, heard, until

pytestmark = pytest.mark.anyio


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def short_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(staff_module, "FIRST_PAUSE_SECONDS", 0.01)


@pytest.mark.usefixtures("doing")
async def test_all_start_and_end_when_they_are_dismissed() -> None:
    office = Office()
    await complete(office)
    first, second = office.processes()
    await office.close()
    assert gone(first)
    assert gone(second)
    assert office.failures == []


async def test_all_are_told_once_the_last_is_ready(doing: Callable[[str], None], tmp_path: Path) -> None:
    # Each says what it is told, by its number; the second is ready only when it may be
    doing(
        f"""
import os, pathlib, threading, time
folder = pathlib.Path({str(tmp_path)!r})
def listen():
    for word in line.makefile("rb"):
        (folder / str(post.number)).write_bytes(word)
threading.Thread(target=listen, daemon=True).start()
while post.number and not (folder / "go").exists():
    time.sleep(0.01)
"""
    )
    office = Office()
    await until(lambda: len(office.staff._workers) == 2 and office.staff._workers[0].ready)
    await asyncio.sleep(0.1)
    assert heard(tmp_path) == []
    (tmp_path / "go").touch()
    await complete(office)
    await until(lambda: heard(tmp_path) == [COMPLETE + b"\n"] * 2)
    await office.close()


@pytest.mark.usefixtures("doing")
async def test_a_dead_one_is_replaced_and_its_places_are_given_back(caplog: pytest.LogCaptureFixture) -> None:
    office = Office()
    await complete(office)
    first, second = office.processes()
    SharedPlaces(office.memory, 0).take(3, 10)
    SharedPlaces(office.memory, 1).take(2, 10)
    with caplog.at_level(logging.ERROR, logger="parley"):
        os.kill(second, signal.SIGKILL)
        await until(lambda: office.processes()[1] != second and office.staff._workers[1].ready)
    assert office.processes()[0] == first
    assert office.places.taken == 3
    assert "API worker 1 has ended (SIGKILL); another one starts in 0.01 s" in caplog.messages
    await office.close()


async def test_one_that_tells_that_it_can_not_serve_is_not_replaced(doing: Callable[[str], None]) -> None:
    doing("if post.number: line.sendall(b'failed there is no tokenizer\\n'); sys.exit(1)")
    office = Office()
    await until(lambda: bool(office.failures))
    await office.close()
    assert office.failures == ["there is no tokenizer"]


async def test_one_that_can_not_start_in_the_place_of_another_is_tried_again(
    doing: Callable[[str], None], caplog: pytest.LogCaptureFixture
) -> None:
    office = Office()
    await complete(office)
    doing("assert post.late; line.sendall(b'failed no room today\\n'); sys.exit(1)")
    with caplog.at_level(logging.ERROR, logger="parley"):
        os.kill(office.processes()[0], signal.SIGKILL)
        await until(lambda: any("no room today" in message for message in caplog.messages))
    doing("assert post.late")
    await until(lambda: office.staff._workers[0].ready)
    await office.close()
    assert office.failures == []


async def test_one_that_can_not_even_start_is_not_replaced_for_ever(doing: Callable[[str], None]) -> None:
    doing("if post.number: sys.exit(3)")
    office = Office()
    await until(lambda: bool(office.failures))
    await office.close()
    assert office.failures == ["API worker 1 can't start: its exit code is 3"]


async def test_who_does_not_end_in_time_is_killed(doing: Callable[[str], None]) -> None:
    doing("signal.signal = lambda *_: None; __import__('_signal').signal(15, __import__('_signal').SIG_IGN)")
    office = Office()
    await complete(office)
    first, second = office.processes()
    await office.close(patience_seconds=0.1)
    assert gone(first)
    assert gone(second)


async def test_a_dismissal_while_they_start_reaches_them(doing: Callable[[str], None]) -> None:
    doing("__import__('time').sleep(0.2)")
    office = Office()
    await asyncio.sleep(0)  # the processes are being made
    await office.close()
    assert all(gone(process) for process in office.processes())


@pytest.mark.usefixtures("doing")
async def test_pauses_get_longer_while_deaths_follow_each_other(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    office = Office()
    await complete(office)

    async def kill(worker: int) -> None:
        process = office.processes()[worker]
        os.kill(process, signal.SIGKILL)
        await until(lambda: office.processes()[worker] != process and office.staff._workers[worker].ready)

    with caplog.at_level(logging.ERROR, logger="parley"):
        await kill(0)
        await kill(0)
        monkeypatch.setattr(staff_module, "GOOD_SECONDS", 0.0)
        await kill(0)
    seconds = [message.split()[-2] for message in caplog.messages]
    assert seconds == ["0.01", "0.02", "0.01"]
    await office.close()


@pytest.mark.usefixtures("doing")
async def test_one_that_the_machine_has_no_room_for_is_tried_again(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, refused = asyncio.create_subprocess_exec, list[OSError]()

    async def refuse_twice(*given: Any, **named: Any) -> asyncio.subprocess.Process:
        if len(refused) == 2:
            return await make(*given, **named)
        refused.append(BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"))
        raise refused[-1]

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse_twice)
    with caplog.at_level(logging.ERROR, logger="parley"):
        office = Office()
        await complete(office)
    assert sum("can't be started" in message for message in caplog.messages) == 2
    await office.close()
    assert office.failures == []


async def test_one_that_ends_before_it_is_told_what_to_do_is_seen_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def break_line(*_: object) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    line = [sys.executable, "-c", "raise SystemExit(4)"]
    monkeypatch.setattr(staff_module, "command", lambda _: line)
    monkeypatch.setattr(asyncio.get_running_loop(), "sock_sendall", break_line)
    office = Office()
    await until(lambda: bool(office.failures))
    await office.close()
    assert "its exit code is 4" in office.failures[0]


class HeldProcess:
    """A process that the kernel holds: it takes no signal, and its end never comes."""

    pid, returncode = 4711, None

    def __init__(self) -> None:
        self.signals: list[int] = []

    def send_signal(self, number: int) -> None:
        self.signals.append(number)

    async def wait(self) -> int:
        await asyncio.Event().wait()
        raise AssertionError("it ended")


@pytest.mark.usefixtures("doing")
async def test_one_that_can_not_be_ended_is_left_behind_and_replaced(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(staff_module, "KILLED_SECONDS", 0.05)
    hire, stuck = Worker.hire, list[HeldProcess]()
    mine, its = socket.socketpair()  # nobody ever closes its end
    mine.setblocking(False)

    async def hire_held_first(post: Post) -> Worker:
        if stuck or post.number:
            return await hire(post)
        stuck.append(HeldProcess())
        its.sendall(ALIVE + b"\n" + READY + b"\n")
        return Worker(cast(asyncio.subprocess.Process, stuck[0]), mine, 0)

    monkeypatch.setattr(Worker, "hire", hire_held_first)
    office = Office(timeout_seconds=1.5)
    await complete(office)
    SharedPlaces(office.memory, 0).take(3, 10)
    with caplog.at_level(logging.ERROR, logger="parley"):
        await until(lambda: office.processes()[0] != HeldProcess.pid and office.staff._workers[0].ready)
    assert stuck[0].signals == [signal.SIGKILL]
    assert office.places.taken == 0
    assert any("holds it; it is left behind" in message for message in caplog.messages)
    assert any("has ended (it can't be ended); another one" in message for message in caplog.messages)
    await office.close()
    its.close()


async def test_a_server_ends_whose_worker_can_not_be_ended(
    doing: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(staff_module, "KILLED_SECONDS", 0.05)
    doing("")
    office = Office()
    await complete(office)
    worker = office.staff._workers[0]
    process, worker.process = worker.process, cast(asyncio.subprocess.Process, HeldProcess())
    os.kill(process.pid, signal.SIGSTOP)
    await office.close(patience_seconds=0.2)
    os.kill(process.pid, signal.SIGKILL)
    await process.wait()


async def test_what_all_are_told_arrives(doing: Callable[[str], None]) -> None:
    words = "[told.readline(), told.readline()] == [b'complete\\n', b'lost\\n']"
    doing(f"line.sendall(b'ready\\n'); told = line.makefile('rb'); sys.exit(7 if {words} else 1)")
    office = Office()
    await complete(office)
    first = office.staff._workers[0]
    office.staff.tell(b"lost")
    assert await first.process.wait() == 7
    doing("")
    await office.close()
