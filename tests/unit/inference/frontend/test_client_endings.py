from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

import pytest

from inference.config import EngineConfig
from inference.core import Life
from inference.errors import GenerationFailed, IncompleteGeneration, InvalidInput, NotReady
from inference.fakes.core import FakeCore, FakeModel
from inference.frontend import preparation
from inference.frontend.client import EngineClient
from inference.grammar.vocabulary import GrammarVocabulary
from inference.images import Image
from inference.tools.types import Tool, ToolUse
from inference.types import (
    CoreOutput,
    CoreRequest,
    EngineState,
    FinishReason,
    Frame,
    ModelInfo,
    Request,
    Sampling,
)
from tests.unit.inference.puppet import EOS, MODEL, Puppet, load_text, with_fake, with_puppet


def test_a_failed_request_raises_once_and_the_others_go_on() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        bad = await client.submit(Request(id="bad", prompt="Hi"))
        good = await client.submit(Request(id="good", prompt="Hi"))
        core.say("bad", "x")
        core.fail("bad")
        core.say("good", "ok", FinishReason.LENGTH)
        assert (await anext(bad)).delta == "x"
        with pytest.raises(GenerationFailed, match="out of paper"):
            await anext(bad)
        with pytest.raises(StopAsyncIteration):
            await anext(bad)
        assert len(await good.collect()) == 2

    with_puppet(check)


def test_closing_aborts_a_request_and_what_comes_late_is_dropped() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi"))
        core.say("a", "x")
        await asyncio.sleep(0)
        await generation.aclose()
        await generation.aclose()
        core.say("a", "y", FinishReason.LENGTH)
        assert core.aborted == ["a"]
        with pytest.raises(IncompleteGeneration):
            await generation.collect()

    with_puppet(check)


def test_closing_after_the_end_aborts_nothing() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi"))
        core.say("a", "x", FinishReason.LENGTH)
        await generation.collect()
        await generation.aclose()
        assert core.aborted == []

    with_puppet(check)


def test_closing_wakes_whoever_waits() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi"))
        waiting = asyncio.create_task(generation.collect())
        await asyncio.sleep(0)
        await generation.aclose()
        with pytest.raises(IncompleteGeneration):
            await waiting

    with_puppet(check)


def test_an_id_in_use_is_refused() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        await client.submit(Request(id="a", prompt="Hi"))
        with pytest.raises(ValueError, match="in use"):
            await client.submit(Request(id="a", prompt="Hi"))

    with_puppet(check)


def test_the_death_of_the_core_fails_every_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.frontend.client.WATCH_SECONDS", 0.01)

    async def check(client: EngineClient, core: Puppet) -> None:
        generations = [await client.submit(Request(id=str(at), prompt="Hi")) for at in range(3)]
        core.say("0", "last words", FinishReason.LENGTH)
        core.alive = False
        assert len(await generations[0].collect()) == len("last words")
        for generation in generations[1:]:
            with pytest.raises(GenerationFailed, match="stopped"):
                await generation.collect()
        assert client.state is EngineState.FAILED
        assert await client.probe() is False
        with pytest.raises(NotReady):
            client.admit()
        with pytest.raises(NotReady):
            await client.submit(Request(id="late", prompt="Hi"))

    with_puppet(check)


class Phoenix(Puppet):
    """A puppet that dies and comes back when the test says so."""

    changed: Callable[[Life, ModelInfo | None], None]

    def watch(self, changed: Callable[[Life, ModelInfo | None], None]) -> None:
        self.changed = changed

    def share(self, vocabulary: GrammarVocabulary) -> None:
        self.shared = vocabulary


async def with_phoenix(test: Callable[[EngineClient, Phoenix], Awaitable[None]]) -> None:
    core = Phoenix()
    client = EngineClient(core, EngineConfig(), load_text)
    await client.start(lambda message: None)
    assert core.shared.eos_token_ids == (EOS,)
    await test(client, core)
    await client.close()


def test_a_core_that_returns_is_waited_for() -> None:
    async def check(client: EngineClient, core: Phoenix) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi"))
        core.changed(Life.DOWN, None)
        core.fail("a")
        assert client.state is EngineState.LOADING
        assert await client.probe() is False
        with pytest.raises(NotReady, match="started again"):
            client.admit()
        with pytest.raises(NotReady, match="started again"):
            await client.submit(Request(id="b", prompt="Hi"))
        with pytest.raises(GenerationFailed):
            await generation.collect()
        assert await client.tokenize("Hi")  # needs no engine
        other = replace(MODEL, max_batch_total_tokens=32)
        core.changed(Life.UP, other)
        again = await client.submit(Request(id="a", prompt="Hi"))
        core.say("a", "x", FinishReason.LENGTH)
        assert len(await again.collect()) == 1
        assert (client.model, core.aborted) == (other, [])

    asyncio.run(with_phoenix(check))


@pytest.mark.parametrize(("images", "less"), [((), 1), ((Image(data=b""),), 0)])
def test_a_request_that_was_prepared_for_an_engine_before_is_not_given_to_the_next(
    images: tuple[Image, ...], less: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its length was checked against another size, or its images were looked at by the first."""
    whole = preparation.prepare

    async def check(client: EngineClient, core: Phoenix) -> None:
        async def slowly(request: Request, *others: Any) -> CoreRequest:
            prepared = await whole(replace(request, images=()), *others)
            core.changed(Life.DOWN, None)
            core.changed(Life.UP, replace(MODEL, max_total_tokens=MODEL.max_total_tokens - less))
            return prepared

        monkeypatch.setattr("inference.frontend.client.prepare", slowly)
        with pytest.raises(NotReady, match="started again meanwhile"):
            await client.submit(Request(id="a", prompt="Hi", images=images))
        assert core.requests == []

    asyncio.run(with_phoenix(check))


def test_whoever_wants_to_hears_of_the_cores_death_and_return() -> None:
    async def check(client: EngineClient, core: Phoenix) -> None:
        heard: list[tuple[Life, ModelInfo | None]] = []
        client.add_life_listener(lambda life, model: heard.append((life, model)))
        for life, model in ((Life.DOWN, None), (Life.UP, MODEL), (Life.DOWN, None), (Life.GONE, None)):
            core.changed(life, model)
        assert heard == [(Life.DOWN, None), (Life.UP, MODEL), (Life.DOWN, None), (Life.GONE, None)]

    asyncio.run(with_phoenix(check))


def test_a_core_that_is_gone_for_good_fails_every_request() -> None:
    async def check(client: EngineClient, core: Phoenix) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi"))
        core.changed(Life.DOWN, None)
        core.changed(Life.GONE, None)
        with pytest.raises(GenerationFailed, match="stopped"):
            await generation.collect()
        assert client.state is EngineState.FAILED

    asyncio.run(with_phoenix(check))


def test_a_core_that_dies_while_the_server_drains_ends_the_draining() -> None:
    async def check(client: EngineClient, core: Phoenix) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi"))
        drained = asyncio.create_task(client.drain(60))
        await asyncio.sleep(0)
        core.changed(Life.DOWN, None)
        core.fail("a")
        await drained
        core.changed(Life.UP, MODEL)
        assert client.state is EngineState.DRAINING
        with pytest.raises(GenerationFailed):
            await generation.collect()

    asyncio.run(with_phoenix(check))


def test_text_that_cannot_be_made_fails_its_request_only(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        bad = await client.submit(Request(id="bad", prompt="Hi"))
        good = await client.submit(Request(id="good", prompt="Hi"))
        core.sink(Frame((CoreOutput("bad", -1, -0.5), CoreOutput("good", 40, -0.5))))
        core.say("good", "x", FinishReason.LENGTH)
        with pytest.raises(GenerationFailed, match="Detokenisation"):
            await bad.collect()
        assert core.aborted == ["bad"]
        assert len(await good.collect()) == 2
        assert await client.probe() is True

    with_puppet(check)


def test_draining_waits_for_what_runs_and_admits_nothing() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        permit = client.admit()
        generation = await client.submit(Request(id="a", prompt="Hi"))
        drained = asyncio.create_task(client.drain(60))
        await asyncio.sleep(0)
        assert client.state is EngineState.DRAINING
        with pytest.raises(NotReady, match="shuts down"):
            client.admit()
        core.say("a", "x", FinishReason.LENGTH)
        assert len(await generation.collect()) == 1
        await asyncio.sleep(0)
        assert not drained.done()  # the response has not ended
        permit.release()
        await drained

    with_puppet(check)


def test_draining_fails_what_is_left_when_time_is_up() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi"))
        await client.drain(0.01)
        with pytest.raises(GenerationFailed, match="shuts down"):
            await generation.collect()
        assert core.aborted == ["a"]
        with pytest.raises(NotReady):
            await client.submit(Request(id="b", prompt="Hi"))

    with_puppet(check)


def test_a_crash_ends_every_request() -> None:
    async def run() -> None:
        model = FakeModel(tokens=(40,), eos_token_id=EOS, step_seconds=0.001, shortest=900, longest=900)
        core = FakeCore(model)
        client = EngineClient(core, EngineConfig(), load_text)
        await client.start(lambda message: None)
        generations = [await client.submit(Request(id=str(at), prompt="Hi")) for at in range(40)]
        await anext(generations[0])
        core.crash()
        for generation in generations:
            with pytest.raises(GenerationFailed):
                await generation.collect()
        await client.close()

    asyncio.run(run())


def test_chats_and_tokens_come_through() -> None:
    async def check(client: EngineClient) -> None:
        prompt = await client.render_chat([{"role": "user", "content": "Hi"}])
        tokens = await client.tokenize(prompt, add_special_tokens=False)
        assert "".join(token.text for token in tokens) == prompt
        assert await client.decode([token.id for token in tokens]) == prompt

    with_fake(check, step_seconds=0.001)


def test_what_the_template_can_do_is_told() -> None:
    tool = Tool(name="weather", description="Tell the weather")
    use = ToolUse(tools=(tool,), required=False, parallel=True)
    chat = [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Well,"}]

    async def check(client: EngineClient) -> None:
        open_end, closed = [await client.render_chat(chat, continue_final=each) for each in (None, False)]
        assert open_end.endswith("Well,")
        assert closed.startswith(open_end)
        assert closed != open_end
        with pytest.raises(InvalidInput, match="continue_final_message"):
            await client.render_chat(chat[:1], continue_final=True)
        shown = await client.render_chat(chat[:1], tools=use, tool_prompt="Use them well")
        assert "weather" in shown
        assert "Use them well" in shown
        assert "messages" in client.template_names
        assert client.tool_format.name == "hermes"  # the embedded model's

    with_fake(check, step_seconds=0.001)


def test_ids_that_are_no_tokens_have_no_text() -> None:
    async def check(client: EngineClient) -> None:
        with pytest.raises(InvalidInput, match="`inputs` holds token 99999999, but the vocabulary has"):
            await client.decode([5, 99999999])

    with_fake(check, step_seconds=0.001)


def test_many_requests_at_once_each_get_what_they_get_alone() -> None:
    async def check(client: EngineClient) -> None:
        async def text(name: str, seed: int) -> str:
            sampling = Sampling(sample=True, seed=seed)
            generation = await client.submit(Request(id=name, prompt="Hi", sampling=sampling))
            *_, last = await generation.collect()
            assert last.finish is not None
            return last.finish.text

        together = await asyncio.gather(*(text(f"t{seed}", seed) for seed in range(50)))
        alone = [await text(f"a{seed}", seed) for seed in range(50)]
        assert together == alone
        assert len(set(alone)) > 40

    with_fake(check, step_seconds=0.001)
