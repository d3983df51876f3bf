from __future__ import annotations

import logging
import queue
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import pytest

from tests.ports import free_port

pytest.importorskip("torch")

from inference.ipc.control import Control
from inference.ipc.framing import pack
from inference.ipc.messages import Pulse, Unavailable
from inference.shards import joining
from inference.shards.joining import Door
from inference.shards.messages import FROM_FIRST, Join, Own

HERE = "127.0.0.1"
PATIENCE_SECONDS = 30.0


@pytest.fixture
def port() -> int:
    return free_port()


class Hall:
    """A door, who came in by it, and who is there."""

    def __init__(self, port: int, count: int = 2) -> None:
        self.entered: queue.Queue[Control] = queue.Queue()
        self.visitors: list[Control] = []
        self.door = Door(HERE, port, count, self.entered.put)
        self._port = port

    def knock(self, said: bytes) -> Control:
        """Return the line of a visitor who has said something."""
        stream = socket.create_connection((HERE, self._port), timeout=PATIENCE_SECONDS)
        self.visitors.append(Control(stream))
        stream.sendall(said)
        return self.visitors[-1]

    def refuses(self) -> bool:
        """Knock; return whether nobody is there to hear it."""
        try:
            self.knock(b"")
        except ConnectionRefusedError:
            return True
        return False

    def guest(self) -> Control:
        """Wait for who has come in, and return the line to it."""
        line = self.entered.get(timeout=PATIENCE_SECONDS)
        self.visitors.append(line)
        return line


@pytest.fixture
def hall(port: int, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hall]:
    monkeypatch.setattr(joining, "version", lambda name: "1.0")
    monkeypatch.setattr(joining, "_JOIN_SECONDS", 0.2)
    hall = Hall(port)
    yield hall
    hall.door.close()
    for line in hall.visitors:
        line.close()
    for thread in threading.enumerate():  # those who hear of it say so, in this test's log
        if thread.name == "shards-hall":
            thread.join(PATIENCE_SECONDS)
            assert not thread.is_alive()


@pytest.mark.parametrize("warned", [True, False])
def test_an_address_that_other_machines_cannot_reach_is_told(
    warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        Door(HERE if warned else "0.0.0.0", free_port(), 1, lambda line: None).close()
    assert [message.startswith(HERE) for message in caplog.messages] == [True] * warned


def test_so_many_shards_come_in_and_then_nobody(hall: Hall) -> None:
    for _ in range(2):
        visitor = hall.knock(pack(Join("1.0")))
        guest = hall.guest()
        assert guest.socket.getpeername() == visitor.socket.getsockname()
        assert guest.socket.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not hall.refuses():  # who comes last may be in before the door is closed
        assert time.monotonic() < deadline, "the door stays open"
        time.sleep(0.01)
    assert hall.entered.empty()
    hall.door.close()  # which it may be again


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"", b"\xff" * 4, pack(Pulse(None)), pack(Join("1.0"))[:-1]]
)
def test_what_is_no_shard_is_sent_away_and_the_next_one_comes_in(
    hall: Hall, said: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert hall.knock(said).read(FROM_FIRST) is None
    assert "Something that is no shard has connected" in caplog.text
    hall.knock(pack(Join("1.0")))
    hall.guest()


def test_another_version_is_told_why_it_is_sent_away(hall: Hall) -> None:
    other = hall.knock(pack(Join("2.0")))
    assert other.read(FROM_FIRST) == [Unavailable("it is of version 2.0, and the first shard of 1.0")]
    assert other.read(FROM_FIRST) is None
    assert hall.entered.empty()


def test_a_closed_door_lets_nobody_in(hall: Hall, port: int) -> None:
    hall.door.close()
    with pytest.raises(ConnectionRefusedError):
        hall.knock(b"")
    Door(HERE, port, 1, hall.entered.put).close()  # the port is free again


@pytest.mark.parametrize(
    ("code", "level", "words"),
    [
        (0, "INFO", "has ended in order, and the shard with it"),
        (1, "WARNING", "has ended (exit code 1): its"),
    ],
)
def test_an_end_in_order_is_no_fault(
    hall: Hall,
    port: int,
    code: int,
    level: str,
    words: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def stop(seconds: float) -> None:
        if threading.current_thread() is threading.main_thread():
            raise InterruptedError

    monkeypatch.setattr(joining, "PROGRAM", ("-c", f"raise SystemExit({code})"))
    monkeypatch.setattr(joining, "time", SimpleNamespace(sleep=stop))
    with caplog.at_level(logging.INFO), pytest.raises(InterruptedError):
        joining.be_a_shard(HERE, port, Own())
    (record,) = [record for record in caplog.records if words in record.message]
    assert record.levelname == level
    hall.guest()


def test_who_says_nothing_keeps_nobody_waiting(hall: Hall, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "_JOIN_SECONDS", 30.0)
    for _ in range(5):
        hall.knock(b"")
    hall.knock(pack(Join("1.0")))
    hall.guest()
