from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace

import pytest

from inference.core import Core, Life, ReturningCore
from inference.errors import ModelUnavailable
from inference.process.address import Address
from inference.process.remote import RemoteCore
from inference.process.server import EngineServer
from inference.types import (
    CoreFailure,
    CoreOutput,
    CoreRequest,
    FinishReason,
    Frame,
    LogprobsMode,
    ModelInfo,
    Sampling,
)
from tests.unit.inference.puppet import MODEL
from tests.unit.inference_process.serving import SECONDS, Recorder, fake, listening


def request(id: str, *prompt: int, tokens: int = 50) -> CoreRequest:
    return CoreRequest(
        id=id,
        prompt_ids=prompt or (1, 2),
        max_new_tokens=tokens,
        sampling=Sampling(),
        logprobs=LogprobsMode.RAW,
        top_n_tokens=0,
        prompt_logprobs=False,
    )


class Ear:
    """Hears a core, and waits for what it is to say."""

    def __init__(self) -> None:
        self.outputs: list[CoreOutput | CoreFailure] = []
        self.frames = 0
        self.stats = 0
        self.lives: list[tuple[Life, ModelInfo | None]] = []
        self.came = asyncio.Event()

    def sink(self, frame: Frame) -> None:
        self.outputs += frame.outputs
        self.frames += 1
        self.stats += frame.stats is not None
        self.came.set()

    def changed(self, life: Life, model: ModelInfo | None) -> None:
        self.lives.append((life, model))
        self.came.set()

    async def wait(self, condition: Callable[[], bool]) -> None:
        async with asyncio.timeout(SECONDS):
            while not condition():
                self.came.clear()
                await self.came.wait()

    def ended(self) -> list[str]:
        return [each.id for each in self.outputs if isinstance(each, CoreFailure) or each.finish is not None]

    def tokens(self, id: str) -> list[int]:
        return [each.token_id for each in self.outputs if isinstance(each, CoreOutput) and each.id == id]


Test = Callable[[RemoteCore, Ear], Awaitable[None]]


async def attached(address: str, test: Test, *, stats: bool = True) -> None:
    core, ear = RemoteCore(address, stats=stats), Ear()
    await asyncio.to_thread(core.load, lambda line: None)
    core.watch(ear.changed)
    core.start(ear.sink)
    try:
        await test(core, ear)
    finally:
        await asyncio.to_thread(core.stop)


class Replaced:
    """An engine that can be taken away and come back on the same socket."""

    def __init__(self, address: Address) -> None:
        self._address = address
        self.core = Recorder()
        self.begin()

    def begin(self) -> None:
        self.core = Recorder()
        self.server = EngineServer(self._address.listening)
        self.server.start()

    def ready(self) -> None:
        self.server.ready(self.core, MODEL)

    def end(self) -> None:
        self.server.close()


def test_it_is_a_core_that_returns() -> None:
    core: Core = RemoteCore("/nowhere")
    assert isinstance(core, ReturningCore)
    assert not core.alive


def test_loading_relays_what_the_engine_says_and_what_it_loaded() -> None:
    with listening() as address:
        engine = Replaced(address)
        core, lines = RemoteCore(address.path), list[str]()
        loaded: list[ModelInfo] = []
        thread = threading.Thread(target=lambda: loaded.append(core.load(lines.append)))
        thread.start()
        engine.server.progress("one")
        engine.server.progress("two")
        assert not core.alive
        engine.ready()
        thread.join(SECONDS)
        assert (loaded, lines, core.alive) == ([MODEL], ["one", "two"], True)
        core.stop()
        engine.end()


def test_a_model_that_can_not_be_loaded_is_told_to_everyone() -> None:
    with listening() as address:
        engine = Replaced(address)
        engine.server.unavailable("no such model")
        for _ in range(2):
            core = RemoteCore(address.path)
            with pytest.raises(ModelUnavailable, match="no such model"):
                core.load(print)
            core.stop()
        engine.end()


def test_nobody_at_the_address_is_a_model_that_is_unavailable() -> None:
    with pytest.raises(ModelUnavailable, match="restart the server"):
        RemoteCore("/nowhere/engine.sock").load(print)


def test_stopping_ends_a_load_that_waits() -> None:
    with listening() as address:
        core = RemoteCore(address.path)
        raised: list[Exception] = []

        def load() -> None:
            try:
                core.load(print)
            except ModelUnavailable as error:
                raised.append(error)

        thread = threading.Thread(target=load)
        thread.start()
        waiting, _ = address.listening.accept()  # attached, and no engine takes it in
        core.stop()
        thread.join(SECONDS)
        waiting.close()
        assert not thread.is_alive()
        assert len(raised) == 1


def test_a_request_that_can_not_be_sent_fails_alone() -> None:
    async def check(core: RemoteCore, ear: Ear) -> None:
        core.submit(replace(request("bad"), salt="\ud800"))  # half a surrogate pair: no UTF-8
        core.submit(request("good"))
        await ear.wait(lambda: len(ear.ended()) == 2)
        failure, *_ = ear.outputs
        assert isinstance(failure, CoreFailure)
        assert failure.message.startswith("The request could not be sent: ")
        core.submit(request("bad"))
        await ear.wait(lambda: len(ear.ended()) == 3)
        assert len(ear.tokens("bad")) == len(ear.tokens("good")) > 0

    with fake(shortest=20, longest=40) as (_, _, address):
        asyncio.run(attached(address, check))


def test_answers_are_the_same_as_without_a_process_between() -> None:
    async def check(core: RemoteCore, ear: Ear) -> None:
        for at in range(10):
            core.submit(request(str(at), 7, at))
        await ear.wait(lambda: len(ear.ended()) == 10)
        assert len({tuple(ear.tokens(str(at))) for at in range(10)}) == 10
        assert ear.stats > 0
        last = {each.id: each for each in ear.outputs if isinstance(each, CoreOutput)}
        assert all(each.started > 0 for each in last.values())

    with fake(shortest=20, longest=40) as (_, _, address):
        asyncio.run(attached(address, check))


def test_cores_of_one_engine_share_ids_without_hearing_of_each_other() -> None:
    async def check(first: RemoteCore, ear: Ear) -> None:
        async def other(second: RemoteCore, other_ear: Ear) -> None:
            for at in range(10):
                first.submit(request(str(at), 7, at))
                second.submit(request(str(at), 8, at))
            await ear.wait(lambda: len(ear.ended()) == 10)
            await other_ear.wait(lambda: len(other_ear.ended()) == 10)
            assert (ear.stats > 0, other_ear.stats) == (True, 0)
            for at in range(10):
                assert len(ear.tokens(str(at))) >= 20
                assert ear.tokens(str(at)) != other_ear.tokens(str(at))

        await attached(address, other, stats=False)

    with fake(shortest=20, longest=40) as (_, _, address):
        asyncio.run(attached(address, check))


def test_aborted_requests_are_heard_of_no_more_from_any_thread() -> None:
    async def check(core: RemoteCore, ear: Ear) -> None:
        core.submit(request("a", tokens=10_000))
        await asyncio.to_thread(core.submit, request("b", tokens=10_000))
        await ear.wait(lambda: len(ear.tokens("a")) > 3 and len(ear.tokens("b")) > 3)
        core.abort("a")
        await asyncio.to_thread(core.abort, "b")
        core.abort("unknown")
        before = len(ear.outputs)
        core.submit(request("c"))
        await ear.wait(lambda: "c" in ear.ended())
        late = [each.id for each in ear.outputs[before:] if each.id == "a"]
        assert late == []

    with fake(shortest=5000, longest=5000) as (_, _, address):
        asyncio.run(attached(address, check))


def test_an_engine_that_dies_fails_what_ran_and_serves_again_when_it_is_back() -> None:
    with listening() as address:
        engine = Replaced(address)
        engine.ready()

        async def check(core: RemoteCore, ear: Ear) -> None:
            for id in ("a", "b"):
                core.submit(request(id))
            first = engine.core
            await asyncio.to_thread(first.wait, lambda: len(first.requests) == 2)
            await asyncio.to_thread(engine.end)
            await ear.wait(lambda: len(ear.outputs) == 2)
            assert ear.outputs == [CoreFailure(id, "The engine stopped") for id in ("a", "b")]
            assert (ear.lives, core.alive) == ([(Life.DOWN, None)], False)
            core.submit(request("meanwhile"))
            assert ear.outputs[2:] == [CoreFailure("meanwhile", "The engine stopped")]
            core.abort("a")
            engine.begin()
            engine.ready()
            await ear.wait(lambda: len(ear.lives) == 2)
            assert (ear.lives[1], core.alive) == ((Life.UP, MODEL), True)
            core.submit(request("a"))
            await asyncio.to_thread(engine.core.wait, lambda: len(engine.core.requests) == 1)
            (again,) = engine.core.requests
            engine.server.sink(Frame((CoreOutput(again.id, 5, 0.0, finish=FinishReason.EOS),)))
            await ear.wait(lambda: len(ear.outputs) == 4)
            assert ear.tokens("a") == [5]

        asyncio.run(attached(address.path, check))
        engine.end()


def test_stopping_fails_what_is_left_and_what_comes_after() -> None:
    with listening() as address:
        engine = Replaced(address)
        engine.ready()

        async def check(core: RemoteCore, ear: Ear) -> None:
            core.submit(request("left"))
            await asyncio.to_thread(core.stop)
            core.submit(request("late"))
            core.abort("left")
            assert ear.ended() == ["left", "late"]
            assert (core.alive, ear.lives) == (False, [])
            await asyncio.to_thread(engine.core.wait, lambda: len(engine.core.aborted) == 1)

        asyncio.run(attached(address.path, check))
        engine.end()


def test_a_socket_that_nobody_listens_at_any_more_is_the_end() -> None:
    with listening() as address:
        engine = Replaced(address)
        engine.ready()

        async def check(core: RemoteCore, ear: Ear) -> None:
            core.submit(request("a"))
            address.close()
            await asyncio.to_thread(engine.end)
            await ear.wait(lambda: len(ear.lives) == 2)
            assert [life for life, _ in ear.lives] == [Life.DOWN, Life.GONE]
            assert ear.ended() == ["a"]
            assert not core.alive

        asyncio.run(attached(address.path, check))


def test_what_comes_between_load_and_start_is_not_lost() -> None:
    async def check() -> None:
        with listening() as address:
            engine = Replaced(address)
            engine.ready()
            engine.server.progress("said right after")
            core, ear = RemoteCore(address.path), Ear()
            core.load(print)
            engine.server.sink(Frame((), None))
            core.watch(ear.changed)
            core.start(ear.sink)
            await asyncio.to_thread(engine.end)
            await ear.wait(lambda: ear.lives != [])
            assert ear.lives == [(Life.DOWN, None)]
            await asyncio.to_thread(core.stop)

    asyncio.run(check())


def test_submitting_never_waits_for_an_engine_that_does_not_read() -> None:
    ours, theirs = socket.socketpair()
    core = RemoteCore("/nowhere")
    core._socket, core._life = ours, Life.UP

    async def run() -> None:
        ear = Ear()
        core.start(ear.sink)
        for at in range(40):
            core.submit(request(str(at), *range(20_000)))
        received = 0
        while received < 40 * 50_000:
            received += len(await asyncio.to_thread(theirs.recv, 2**20))
        assert ear.outputs == []
        await asyncio.to_thread(core.stop)

    asyncio.run(run())
    theirs.close()
