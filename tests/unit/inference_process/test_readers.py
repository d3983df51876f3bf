"""Processes that read slowly, not at all, or have much to read."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

import pytest

from inference.frontend.limits import PROMPT_LOGPROBS
from inference.ipc.framing import HEADER_BYTES, unpack
from inference.ipc.messages import ENGINE_LIMIT, FROM_ENGINE, MIB, Batch, Failed
from inference.process.connection import FULL_BYTES, OUTBOX_BYTES, Connection
from inference.process.routing import Numbers, Routes, frames
from inference.prompt_tops import PromptTops
from inference.types import CoreFailure, CoreOutput, Frame
from tests.unit.inference_process.serving import Caller, Recorder, recorder, submit

LARGE = PromptTops(b"", bytes(3 * MIB), bytes(3 * MIB))


class Paced(Recorder):
    """A core that asks whose readers have enough."""

    full: Callable[[str], bool]

    def __init__(self) -> None:
        super().__init__()
        self.asked_again = 0

    def pace(self, full: Callable[[str], bool]) -> None:
        self.full = full

    def ask_again(self) -> None:
        with self.told:
            self.asked_again += 1
            self.told.notify_all()


def test_a_slow_reader_is_waited_for_however_much_it_is_told() -> None:
    with recorder() as (server, core, address):
        caller = Caller(address)
        caller.receive()
        count = 20  # of 6 MiB: far more than was let wait once
        caller.send(*(submit(at) for at in range(count)))
        core.wait(lambda: len(core.requests) == count)
        for at, request in enumerate(core.requests):
            server.sink(Frame((CoreOutput(request.id, at, 0.0, prompt_logprobs=(), prompt_top=LARGE),)))
        told = []
        for _ in range(count):
            time.sleep(0.02)  # it is busy with what it read
            told.append(caller.batch())
        assert [batch.tokens for batch in told] == [[at] for at in range(count)]
        assert {batch.more[0].prompt_top for batch in told} == {LARGE}
        assert core.aborted == []
        caller.close()


def test_a_reader_that_takes_nothing_is_let_go_however_little_waits(caplog: pytest.LogCaptureFixture) -> None:
    with recorder(unread_seconds=0.2) as (server, core, address):
        caller, other = Caller(address), Caller(address)
        caller.receive()
        caller.send(submit(0, "dead"))
        core.wait(lambda: len(core.requests) == 1)
        other.send(submit(0, "alive"))
        core.wait(lambda: len(core.requests) == 2)
        dead, alive = (request.id for request in core.requests)
        server.sink(Frame((CoreOutput(dead, 1, 0.0, prompt_logprobs=(), prompt_top=LARGE),)))
        core.wait(lambda: core.aborted == [dead])
        assert "it has read nothing for" in caplog.text
        other.receive()
        server.sink(Frame((CoreOutput(alive, 5, 0.0),)))
        assert other.batch().tokens == [5]
        caller.close()
        other.close()


def test_a_reader_to_whom_nothing_is_said_isnt_judged() -> None:
    with recorder(unread_seconds=0.05) as (server, core, address):
        caller = Caller(address)
        caller.receive()
        caller.send(submit(0))
        core.wait(lambda: len(core.requests) == 1)
        time.sleep(0.3)
        server.sink(Frame((CoreOutput(core.requests[0].id, 5, 0.0),)))
        assert caller.batch().tokens == [5]
        caller.close()


def test_the_longest_frame_may_wait_and_the_longest_of_a_text_is_one() -> None:
    assert OUTBOX_BYTES >= ENGINE_LIMIT + FULL_BYTES
    assert 8 * PROMPT_LOGPROBS <= ENGINE_LIMIT // 2


def test_a_core_is_told_whose_reader_has_enough_and_when_it_has_room_again() -> None:
    core = Paced()
    with recorder(core) as (server, _, address):
        caller, other = Caller(address), Caller(address)
        caller.receive()
        other.receive()
        caller.send(submit(0, "first"), submit(1, "second"))
        core.wait(lambda: len(core.requests) == 2)
        other.send(submit(0, "other"))
        core.wait(lambda: len(core.requests) == 3)
        first, second, others = (request.id for request in core.requests)
        assert [core.full(each) for each in (first, second, others, "nobody")] == [False] * 4
        server.sink(Frame((CoreOutput(first, 1, 0.0, prompt_logprobs=(), prompt_top=LARGE),)))
        assert [core.full(each) for each in (first, second, others, "nobody")] == [True, True, False, False]
        assert core.asked_again == 0
        caller.batch()
        core.wait(lambda: core.asked_again >= 1)
        assert not core.full(second)
        caller.close()
        other.close()


def test_a_core_is_asked_again_whenever_a_reader_has_room_whatever_was_seen_before() -> None:
    """Between a look at what waits and the writing of it more may come, by which somebody is held back."""
    core = Paced()
    with recorder(core) as (server, _, address):
        caller = Caller(address)
        caller.receive()
        caller.send(submit(0))
        core.wait(lambda: len(core.requests) == 1)
        some = PromptTops(b"", bytes(MIB), bytes(MIB))  # more than a socket takes, and not yet full
        server.sink(Frame((CoreOutput(core.requests[0].id, 1, 0.0, prompt_logprobs=(), prompt_top=some),)))
        assert not core.full(core.requests[0].id)
        caller.batch()
        core.wait(lambda: core.asked_again >= 1)
        caller.close()


def test_a_reader_is_judged_by_the_time_for_which_something_waited() -> None:
    ours, theirs = socket.socketpair()
    connection = Connection(0, ours, lambda _: None, unread_seconds=40.0)
    now = time.monotonic() + 1000.0  # nothing was said, and nobody looked, for long
    connection.post(bytes(8 * MIB))
    for second in range(35):
        connection.look(now + second)
    assert connection.fault is None
    for second in range(35, 45):
        connection.look(now + second)
    assert str(connection.fault).startswith("it has read nothing for 41 s")
    ours.close()
    theirs.close()


def test_a_step_that_is_too_long_for_a_frame_is_several() -> None:
    routes, numbers = Routes[str](), Numbers()
    ids = [f"{at}" for at in range(9)]
    for at, each in enumerate(ids):
        routes.add("owner", at, each)
        assert numbers.add(each) == at
    top = tuple((token, -1.0) for token in range(100))
    said = tuple(CoreOutput(each, at, -1.0, top if at % 2 else ()) for at, each in enumerate(ids[:-1]))
    batch = routes.split(Frame((*said, CoreFailure(ids[-1], "why"))))["owner"]
    parts = [unpack(FROM_ENGINE, data[HEADER_BYTES:]) for data in frames(batch, 1500)]
    assert len(parts) == 4
    outputs = [output for part in parts for output in numbers.frame(part).outputs]
    assert outputs == [*said, CoreFailure(ids[-1], "why")]
    assert [part.failures for part in parts] == [[], [], [], [Failed(8, "why")]]
    assert len(list(frames(batch))) == 1
    assert len(list(frames(Batch([0], [1], [0.0]), 1))) == 1  # what is one can't be several
