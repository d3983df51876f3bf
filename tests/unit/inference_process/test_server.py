from __future__ import annotations

import logging
import os
import socket
import stat
import threading
from contextlib import ExitStack
from pathlib import Path

import msgspec
import pytest

from inference.fakes.core import FakeCore, FakeModel
from inference.ipc.framing import pack
from inference.ipc.messages import (
    Abort,
    Attach,
    Batch,
    Failed,
    Look,
    More,
    Progress,
    Ready,
    Seen,
    Unavailable,
)
from inference.process.server import EngineServer
from inference.step_stats import StepStats
from inference.types import CoreFailure, CoreOutput, Frame, LogprobsMode, Sampling
from tests.unit.inference.puppet import MODEL
from tests.unit.inference_process.serving import EOS, TOKENS, Caller, fake, listening, recorder, submit

STATS = StepStats(
    prefill_tokens=1,
    decode_sequences=2,
    admitted=3,
    cached_tokens=4,
    forward_seconds=5.0,
    sample_seconds=6.0,
    waiting=7,
    running=8,
    kv_tokens=9,
    preempted=10,
)


def test_whoever_attaches_hears_of_the_loading_from_its_beginning() -> None:
    with listening() as address:
        server = EngineServer(address.listening)
        server.start()
        early = Caller(address.path)
        server.progress("reading")
        assert early.receive() == Progress("reading")
        late = Caller(address.path)
        server.unavailable("no such model")
        assert [late.receive(), late.receive()] == [Progress("reading"), Unavailable("no such model")]
        assert early.receive() == Unavailable("no such model")
        server.close()
        assert (early.receive(), late.receive()) == (None, None)
        early.close()
        late.close()


def test_requests_reach_the_core_as_they_were_sent() -> None:
    with recorder() as (_, core, address):
        caller = Caller(address)
        assert caller.receive() == Ready(MODEL)
        sent = submit(7, "mine")
        scored = {"top_n_tokens": 3, "prompt_logprobs": True, "prompt_top_n_tokens": 4}
        caller.send(msgspec.structs.replace(sent, min_new_tokens=2, **scored))
        core.wait(lambda: len(core.requests) == 1)
        (received,) = core.requests
        assert received.id.startswith("mine#")
        assert (received.prompt_ids, received.max_new_tokens, received.min_new_tokens) == ((1, 2), 5, 2)
        assert (received.sampling, received.logprobs) == (Sampling(), LogprobsMode.RAW)
        assert (received.top_n_tokens, received.prompt_logprobs, received.ignore_eos) == (3, True, False)
        assert received.prompt_top_n_tokens == 4
        assert (received.owner, received.salt, received.grammar) == ("owner", "salt", None)
        caller.close()


def test_a_step_is_one_frame_for_each_process_that_it_concerns() -> None:
    with recorder() as (server, core, address), ExitStack() as stack:
        callers = [Caller(address, stats=at == 0) for at in range(3)]
        for caller in callers:
            stack.callback(caller.close)
            assert caller.receive() == Ready(MODEL)
        for at, caller in enumerate(callers[:2]):
            caller.send(submit(0, "same id"), submit(1, "same id too"))
            core.wait(lambda wanted=2 * at + 2: len(core.requests) == wanted)  # type: ignore[misc]
        ids = [request.id for request in core.requests]
        assert len(set(ids)) == 4
        outputs = (CoreOutput(each, at, -1.0, started=3.5, cached_tokens=16) for at, each in enumerate(ids))
        server.sink(Frame(tuple(outputs), STATS))
        first = [More(at, (), None, 3.5, 16, None, None) for at in range(2)]  # said once of each request
        assert callers[0].batch() == Batch([0, 1], [0, 1], [-1.0, -1.0], first, stats=STATS)
        assert callers[1].batch() == Batch([0, 1], [2, 3], [-1.0, -1.0], first)
        server.sink(Frame((CoreFailure(ids[3], "no"), CoreOutput(ids[2], 9, -2.0))))
        assert callers[1].batch() == Batch([0], [9], [-2.0], failures=[Failed(1, "no")])
        server.sink(Frame((), STATS))
        assert callers[0].batch() == Batch(stats=STATS)
        server.progress("the next thing")  # the others were not woken for what doesn't concern them
        assert callers[1].receive() == Progress("the next thing")
        assert callers[2].receive() == Progress("the next thing")


def test_an_aborted_request_is_aborted_once_and_heard_of_no_more() -> None:
    with recorder() as (server, core, address):
        caller = Caller(address)
        caller.receive()
        caller.send(submit(0), submit(1), Abort(0), Abort(0), Abort(55))
        caller.send(submit(2))
        core.wait(lambda: len(core.requests) == 3)
        ids = [request.id for request in core.requests]
        assert core.aborted == ids[:1]
        server.sink(Frame(tuple(CoreOutput(each, 5, 0.0) for each in ids)))
        assert caller.batch().numbers == [1, 2]
        caller.close()


def test_requests_of_a_process_that_has_gone_are_aborted_and_only_they() -> None:
    with recorder() as (_, core, address):
        gone, stays = Caller(address), Caller(address)
        gone.send(submit(0), submit(1))
        core.wait(lambda: len(core.requests) == 2)
        stays.send(submit(0))
        core.wait(lambda: len(core.requests) == 3)
        gone.close()
        core.wait(lambda: len(core.aborted) == 2)
        assert sorted(core.aborted) == sorted(request.id for request in core.requests[:2])
        stays.close()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"GET / HTTP/1.1\r\n\r\n",  # a length of 1.2 GB
        b"\0\0\0\x01\xc1",
        pack(Progress("of the other side")),
        pack(Attach(False)),  # for the second time
        pack(submit(0)) + pack(submit(0)),
        pack(Look(0, "mine", (b"image",), (0, 1), "")),
        pack(Look(0, "mine", (b"image",), (-1,), "")),
    ],
)
def test_a_malformed_frame_ends_that_connection_alone(
    nonsense: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    with recorder() as (server, core, address):
        bad, good = Caller(address), Caller(address)
        good.receive()
        bad.receive()
        bad.socket.sendall(nonsense)
        assert bad.receive() is None
        assert any(record.levelno == logging.WARNING for record in caplog.records)
        good.send(submit(0, "good"))
        core.wait(lambda: any(request.id.startswith("good") for request in core.requests))
        (request,) = [request for request in core.requests if request.id.startswith("good")]
        server.sink(Frame((CoreOutput(request.id, 5, 0.0),)))
        assert good.batch().tokens == [5]
        bad.close()
        good.close()


def test_the_first_word_is_attach() -> None:
    with recorder() as (_, core, address):
        caller = Caller(address, attach=False)
        caller.send(submit(0))
        assert caller.receive() is None
        assert core.requests == []
        caller.close()


def test_a_request_that_can_not_be_queued_fails_alone() -> None:
    with recorder() as (_, core, address):
        caller = Caller(address)
        caller.receive()
        caller.send(submit(0, prompt=(13,)), submit(1))
        assert caller.batch() == Batch(failures=[Failed(0, "The request could not be queued: thirteen")])
        core.wait(lambda: len(core.requests) == 1)
        caller.close()


def test_a_slow_reader_holds_up_nobody_and_is_let_go_past_the_limit(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with recorder(outbox_bytes=2**20) as (server, core, address):
        slow, quick = Caller(address), Caller(address)
        slow.receive()
        quick.receive()
        slow.send(submit(0, "slow"))
        core.wait(lambda: len(core.requests) == 1)
        quick.send(submit(0, "quick"))
        core.wait(lambda: len(core.requests) == 2)
        ids = [request.id for request in core.requests]
        top = tuple((token, -1.0) for token in range(1000))
        steps = 0
        while not core.aborted:  # the sink returns although nobody reads what it says
            server.sink(Frame((CoreOutput(ids[0], 5, 0.0, top), CoreOutput(ids[1], steps, 0.0))))
            assert quick.batch().tokens == [steps]
            steps += 1
            assert steps < 10_000
        assert core.aborted == ids[:1]
        assert "wait to be read" in caplog.text
        slow.close()
        quick.close()


def test_what_waits_for_a_slow_reader_comes_whole_and_in_order() -> None:
    with recorder() as (server, core, address):
        caller = Caller(address)
        caller.receive()
        caller.send(submit(0))
        core.wait(lambda: len(core.requests) == 1)
        top = tuple((token, -1.0) for token in range(1000))
        for step in range(300):  # some 4 MB, twenty times what the socket takes
            server.sink(Frame((CoreOutput(core.requests[0].id, step, 0.0, top),)))
        batches = [caller.batch() for _ in range(300)]
        assert [batch.tokens for batch in batches] == [[step] for step in range(300)]
        assert {batch.more[0].top for batch in batches} == {top}
        caller.close()


def test_many_processes_with_the_same_ids_get_their_own_answers() -> None:
    with fake(shortest=20, longest=30) as (_, _, address), ExitStack() as stack:
        callers = [Caller(address) for _ in range(4)]
        for at, caller in enumerate(callers):
            stack.callback(caller.close)
            caller.send(*(submit(n, f"id{n}", prompt=(50 + at, n), tokens=100) for n in range(8)))
        answers = [_tokens(caller, 8) for caller in callers]
        alone = Caller(address)
        stack.callback(alone.close)
        both = [(at, n) for at in range(4) for n in range(8)]
        alone.send(*(submit(8 * at + n, prompt=(50 + at, n), tokens=100) for at, n in both))
        wanted = _tokens(alone, 32)
        for at, answer in enumerate(answers):
            assert answer == {n: wanted[8 * at + n] for n in range(8)}
        assert len({tuple(tokens) for tokens in wanted.values()}) == 32


def _tokens(caller: Caller, requests: int) -> dict[int, list[int]]:
    tokens: dict[int, list[int]] = {}
    ended: set[int] = set()
    while len(ended) < requests:
        message = caller.receive()
        if not isinstance(message, Batch):
            continue
        for number, token in zip(message.numbers, message.tokens, strict=True):
            assert number not in ended
            tokens.setdefault(number, []).append(token)
        ended |= {message.numbers[more.at] for more in message.more if more.finish is not None}
        assert not message.failures
    return tokens


def test_nobody_else_can_enter_the_directory() -> None:
    with listening() as address:
        directory = Path(address.path).parent
        assert stat.S_IMODE(os.stat(directory).st_mode) == 0o700
        assert list(directory.iterdir()) == [Path(address.path)]
    assert not directory.exists()
    with socket.socket(socket.AF_UNIX) as late, pytest.raises(FileNotFoundError):
        late.connect(address.path)


def test_joining_a_core_waits_for_its_end() -> None:
    for seconds in (0.0, 0.001):
        core = FakeCore(FakeModel(tokens=TOKENS, eos_token_id=EOS, step_seconds=seconds))
        core.start(lambda frame: None)
        waiting = threading.Thread(target=core.join)
        waiting.start()
        assert waiting.is_alive()
        core.stop()
        waiting.join(10)
        assert not waiting.is_alive()


def test_core_that_takes_no_images_says_so_and_the_request_ends() -> None:
    with recorder() as (_, core, address):
        caller = Caller(address)
        assert caller.receive() == Ready(MODEL)
        caller.send(Look(7, "mine", (b"image",), (0,), ""))
        said = caller.receive()
        assert isinstance(said, Batch)
        assert said.looked == [Seen(7, (), "The engine takes no images", True)]
        caller.send(submit(7, "mine"))  # the number is free again
        core.wait(lambda: len(core.requests) == 1)
        caller.close()
