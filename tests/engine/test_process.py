"""The embedded model in a process of its own: the same tokens, grammars, death, and attached clients."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks.random_adapters import save_adapters
from inference.config import EMBEDDED_MODEL, EngineConfig, Found
from inference.engine.engine import TorchCore
from inference.errors import GenerationFailed
from inference.frontend.client import EngineClient
from inference.process import supervision
from inference.process.remote import RemoteCore
from inference.process.supervision import EngineProcess
from inference.text.pipeline import load_text
from inference.types import EngineState, Event, FinishReason, Grammar, GrammarKind, Request, Sampling

CONFIG = EngineConfig(threads=1, max_batch_total_tokens=8192)
SECONDS = 60.0
SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 6}, "age": {"type": "integer"}},
    "required": ["name", "age"],
    "additionalProperties": False,
}
PROMPTS = [f"Tell me something about the number {at}." for at in range(6)]


@pytest.fixture(scope="module")
def engine() -> Iterator[EngineProcess]:
    process = EngineProcess(CONFIG)
    process.start()
    process.wait(lambda line: None)
    yield process
    process.stop()


def with_clients(
    address: str, test: Callable[..., Awaitable[None]], clients: int = 1, config: EngineConfig = CONFIG
) -> None:
    """Run a test with as many API processes' clients, all of them in this one."""

    async def run() -> None:
        cores = [RemoteCore(address) for _ in range(clients)]
        attached = [EngineClient(core, config, lambda: load_text(config.model)) for core in cores]
        for client in attached:
            await client.start(lambda line: None)
        try:
            await test(*attached)
        finally:
            for client in attached:
                await client.close()

    asyncio.run(run())


async def answer(client: EngineClient, request: Request) -> tuple[Event, ...]:
    return await (await client.submit(request)).collect()


def requests(**settings: Any) -> list[Request]:
    return [
        Request(id=str(at), prompt=prompt, max_new_tokens=24, **settings) for at, prompt in enumerate(PROMPTS)
    ]


def looked_through(event: Event) -> Event:
    """Return all but its end, with a prompt's tokens made."""
    prompt = (replace(token, top_tokens=tuple(token.top_tokens)) for token in event.prompt)
    return replace(event, finish=None, prompt=tuple(prompt))


def said(events: tuple[Event, ...]) -> list[int]:
    return [event.token.id for event in events]


def test_tokens_are_those_of_an_engine_on_a_thread_to_the_last_bit(engine: EngineProcess) -> None:
    wanted = requests(
        prompt_logprobs=True,
        top_n_tokens=2,
        prompt_top_n_tokens=2,
        sampling=Sampling(sample=True, seed=2**63 + 5),
    )

    async def on_a_thread() -> list[tuple[Event, ...]]:
        client = EngineClient(TorchCore(CONFIG), CONFIG, lambda: load_text(CONFIG.model))
        await client.start(lambda line: None)
        answers = await asyncio.gather(*(answer(client, each) for each in wanted))
        await client.close()
        return answers

    alone = asyncio.run(on_a_thread())

    async def check(client: EngineClient) -> None:
        answers = await asyncio.gather(*(answer(client, each) for each in wanted))
        for mine, theirs in zip(answers, alone, strict=True):
            assert list(map(looked_through, mine)) == list(map(looked_through, theirs))
            assert mine[-1].finish is not None
            assert theirs[-1].finish is not None
            timings = mine[-1].finish.timings
            assert timings.submitted <= timings.queued <= timings.started <= timings.finished
            assert replace(mine[-1].finish, timings=timings) == replace(theirs[-1].finish, timings=timings)

    with_clients(engine.address, check)


def test_attached_clients_with_the_same_ids_do_not_hear_each_other(engine: EngineProcess) -> None:
    async def check(*clients: EngineClient) -> None:
        wanted = requests()
        alone = [said(await answer(clients[0], each)) for each in wanted]
        together = await asyncio.gather(
            *(answer(client, each) for client in clients for each in wanted),
        )
        assert [said(events) for events in together] == alone * len(clients)

    with_clients(engine.address, check, clients=3)


def test_a_client_that_goes_leaves_the_others_alone(engine: EngineProcess) -> None:
    async def check(stays: EngineClient) -> None:
        core = RemoteCore(engine.address)
        goes = EngineClient(core, CONFIG, lambda: load_text(CONFIG.model))
        await goes.start(lambda line: None)
        generations = [await goes.submit(replace(each, max_new_tokens=900)) for each in requests()]
        await anext(generations[0])
        other = asyncio.create_task(answer(stays, requests()[0]))
        await asyncio.to_thread(core.stop)
        assert len(await other) > 1
        await goes.close()

    with_clients(engine.address, check)


def test_grammars_are_followed_though_they_were_compiled_elsewhere(engine: EngineProcess) -> None:
    grammar = Grammar(kind=GrammarKind.JSON_SCHEMA, source=json.dumps(SCHEMA))
    sampling = Sampling(sample=True, temperature=2.5)

    async def check(client: EngineClient) -> None:
        wanted = [
            replace(each, grammar=grammar, max_new_tokens=200, sampling=replace(sampling, seed=seed))
            for seed, each in enumerate(requests())
        ]
        for events in await asyncio.gather(*(answer(client, each) for each in wanted)):
            assert events[-1].finish is not None
            value = json.loads(events[-1].finish.text)
            assert (type(value["name"]), type(value["age"])) == (str, int)

    with_clients(engine.address, check)


def test_cached_tokens_of_a_prompt_come_through(engine: EngineProcess) -> None:
    async def check(client: EngineClient) -> None:
        long = Request(id="a", prompt="All the same to everyone. " * 20, max_new_tokens=2)
        first, second = [(await answer(client, long))[-1].finish for _ in range(2)]
        other = (await answer(client, replace(long, cache_salt="mine alone")))[-1].finish
        assert first is not None
        assert second is not None
        assert other is not None
        assert (first.cached_tokens, other.cached_tokens) == (0, 0)
        assert 0 < second.cached_tokens < second.prompt_tokens

    with_clients(engine.address, check)


@pytest.mark.slow
def test_an_adapter_that_is_named_is_the_one_that_answers(tmp_path: Path) -> None:
    adapters = save_adapters(EMBEDDED_MODEL, tmp_path / "adapters", count=2, rank=8)
    config = replace(CONFIG, model=replace(CONFIG.model, adapters=adapters))
    process = EngineProcess(config)
    process.start()
    process.wait(lambda line: None)

    async def check(client: EngineClient) -> None:
        names = (None, "adapter-0", "adapter-1")
        asked = [Request(id=f"{name}", prompt="Hello", max_new_tokens=12, adapter=name) for name in names]
        heard = [await answer(client, each) for each in asked]
        scores = {tuple((event.token.id, event.token.logprob) for event in events) for events in heard}
        assert len(scores) == len(names)

    try:
        with_clients(process.address, check, config=config)
    finally:
        process.stop()


def test_an_end_by_a_stop_sequence_knows_of_the_beginning(engine: EngineProcess) -> None:
    async def check(client: EngineClient) -> None:
        long = Request(id="a", prompt="Something else, the same to everyone. " * 20, max_new_tokens=24)
        *_, end = await answer(client, long)
        assert end.finish is not None
        stop = (end.finish.text[len(end.finish.text) // 2 :],)
        finish = (await answer(client, replace(long, stop=stop)))[-1].finish
        assert finish is not None
        assert finish.reason is FinishReason.STOP
        times = finish.timings
        assert times.submitted <= times.queued <= times.started <= times.finished
        assert 0 < finish.cached_tokens < finish.prompt_tokens

    with_clients(engine.address, check)


def test_idle_engine_sleeps(engine: EngineProcess) -> None:
    async def check(client: EngineClient) -> None:
        await answer(client, requests()[0])
        assert engine.pid is not None
        before = processor_seconds(engine.pid)
        await asyncio.sleep(2)
        assert processor_seconds(engine.pid) - before < 0.2  # one thread that spins takes its share of two

    with_clients(engine.address, check)


def processor_seconds(pid: int) -> float:
    """Return the processor time that a process has taken, all of its threads'."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
def test_killed_under_load_it_fails_what_ran_and_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(supervision, "BACK_OFF_SECONDS", (0.01,))
    process = EngineProcess(CONFIG)
    process.start()

    async def check(client: EngineClient) -> None:
        wanted = [replace(each, max_new_tokens=900, ignore_eos=True) for each in requests()]
        running = [await client.submit(each) for each in wanted]
        await asyncio.gather(*(anext(generation) for generation in running))
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        for generation in running:
            with pytest.raises(GenerationFailed, match="The engine stopped"):
                await generation.collect()
        assert not await client.probe()
        async with asyncio.timeout(SECONDS):
            while client.state is not EngineState.READY:  # noqa: ASYNC110 - as a client of the server sees it
                await asyncio.sleep(0.05)
        assert await client.probe()
        assert len(await answer(client, requests()[0])) > 1

    with_clients(process.address, check)
    process.stop()


def test_started_again_it_has_the_commit_that_it_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:1")  # where nobody listens
    monkeypatch.setattr(supervision, "BACK_OFF_SECONDS", (0.01,))
    repository, first, later = tmp_path / "models--org--name", "a" * 40, "b" * 40
    for sha in (first, later):
        shutil.copytree(EMBEDDED_MODEL, repository / "snapshots" / sha)
    (repository / "snapshots" / later / "config.json").write_text("{}")  # which no engine would start with
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(first)
    model = replace(CONFIG.model, model_id="org/name", cache_dir=str(tmp_path))
    config = replace(CONFIG, model=model)
    process = EngineProcess(config)
    process.start()
    assert process.found is None

    async def check(client: EngineClient) -> None:
        assert client.model.sha == first
        (repository / "refs" / "main").write_text(later)
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        async with asyncio.timeout(SECONDS):
            while await client.probe():  # noqa: ASYNC110 - as a client of the server sees it
                await asyncio.sleep(0.01)
            while not await client.probe():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert client.model.sha == first
        assert len(await answer(client, requests()[0])) > 1

    with_clients(process.address, check, config=config)
    process.stop()
    assert process.found == Found(first, None)  # the hub, which wasn't there, said no tag


@pytest.mark.slow
def test_the_api_process_does_without_torch() -> None:
    code = """
import asyncio, sys
from inference.frontend.client import EngineClient
from inference.config import EngineConfig
from inference.process.spawned import SpawnedCore
from inference.text.pipeline import load_text
from inference.types import Request
config = EngineConfig(threads=1)
async def main():
    client = EngineClient(SpawnedCore(config), config, lambda: load_text(config.model))
    await client.start(print)
    generation = await client.submit(Request(id="a", prompt="Hi", max_new_tokens=3))
    await generation.collect()
    await client.close()
asyncio.run(main())
sys.exit("torch" in sys.modules)
"""
    line = [sys.executable, "-c", code]

    done = subprocess.run(line, check=False, timeout=100, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
