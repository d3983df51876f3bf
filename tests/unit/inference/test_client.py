from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from inference.client import EngineClient
from inference.config import EngineConfig
from inference.errors import (
    GenerationFailed,
    IncompleteGeneration,
    InvalidInput,
    ModelUnavailable,
    NotReady,
    Overloaded,
)
from inference.fake import FakeCore, FakeModel, fake_client
from inference.text.chat_template import ChatTemplate
from inference.text.pipeline import TextPipeline
from inference.text.stand_in import CHATML, small_tokenizer
from inference.text.tokenizer import FastTokenizer
from inference.types import (
    CoreFailure,
    CoreOutput,
    CoreRequest,
    EngineState,
    FinishReason,
    Frame,
    ModelInfo,
    Request,
    Sampling,
    StepStats,
)

TOKENIZER = FastTokenizer(small_tokenizer())
(EOS,) = TOKENIZER.encode("<|im_end|>", add_special_tokens=False)
MODEL = ModelInfo(
    id="puppet",
    sha=None,
    pipeline_tag=None,
    dtype="torch.float32",
    device_type="cpu",
    max_input_tokens=20,
    max_total_tokens=30,
    max_batch_prefill_tokens=64,
    max_batch_total_tokens=64,
    level="test",
    eos_token_ids=(EOS,),
)
TOO_LONG = (
    "`inputs` tokens + `max_new_tokens` must be <= 30. "
    "Given: {prompt} `inputs` tokens and {new} `max_new_tokens`"
)


class Puppet:
    """A core that says exactly what the test tells it to, when told."""

    def __init__(self) -> None:
        self.requests: list[CoreRequest] = []
        self.aborted: list[str] = []
        self.alive = True
        self.sink: Callable[[Frame], None] = lambda frame: None

    def load(self, progress: Callable[[str], None]) -> ModelInfo:
        return MODEL

    def start(self, sink: Callable[[Frame], None]) -> None:
        self.sink = sink

    def submit(self, request: CoreRequest) -> None:
        self.requests.append(request)

    async def submitted(self, requests: int) -> None:
        """Wait until so many requests came."""
        for _ in range(1000):
            if len(self.requests) >= requests:
                return
            await asyncio.sleep(0)
        raise AssertionError(f"{len(self.requests)} requests came, not {requests}")

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)

    def stop(self) -> None:
        self.alive = False

    def say(self, request_id: str, text: str, finish: FinishReason | None = None) -> None:
        """Send the tokens of a text in a frame each; the last one has `finish`."""
        ids = TOKENIZER.encode(text, add_special_tokens=False)
        for at, token_id in enumerate(ids):
            last = at == len(ids) - 1
            self.sink(Frame((CoreOutput(request_id, token_id, -0.5, finish=finish if last else None),)))

    def fail(self, *request_ids: str) -> None:
        self.sink(Frame(tuple(CoreFailure(request_id, "out of paper") for request_id in request_ids)))


def load_text() -> TextPipeline:
    return TextPipeline(TOKENIZER, ChatTemplate({"default": CHATML}, {}), workers=1)


def with_puppet(test: Callable[[EngineClient, Puppet], Awaitable[None]], **config: Any) -> None:
    """Run a test with a started client of a Puppet."""

    async def run() -> None:
        core = Puppet()
        client = EngineClient(core, EngineConfig(**config), load_text)
        await client.start(lambda message: None)
        await test(client, core)
        await client.close()

    asyncio.run(run())


def with_fake(test: Callable[[EngineClient], Awaitable[None]], **behaviour: Any) -> None:
    """Run a test with a started client of a FakeCore."""

    async def run() -> None:
        client = fake_client(**behaviour)
        await client.start(lambda message: None)
        try:
            await test(client)
        finally:
            await client.close()

    asyncio.run(run())


# --- events -------------------------------------------------------------------------------------


def test_deltas_add_up_to_the_text_and_the_last_event_finishes() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi"))
        core.say("a", "héllo €")
        core.say("a", "<|im_end|>", FinishReason.EOS)
        events = await generation.collect()
        finish = events[-1].finish
        assert finish is not None
        assert [event.index for event in events] == list(range(1, len(events) + 1))
        assert [event.finish for event in events[:-1]] == [None] * (len(events) - 1)
        assert "".join(event.delta for event in events) == finish.text == "héllo €"
        assert (events[-1].token.text, events[-1].token.special) == ("<|im_end|>", True)
        assert (finish.reason, finish.prompt_tokens, finish.seed) == (FinishReason.EOS, 2, None)
        assert finish.generated_tokens == len(events)
        assert generation.prompt_tokens == 2

    with_puppet(check)


def test_a_character_cut_off_by_the_limit_is_dropped() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi"))
        first, *_ = TOKENIZER.encode("€", add_special_tokens=False)
        core.say("a", "ab")
        core.sink(Frame((CoreOutput("a", first, -0.5, finish=FinishReason.LENGTH),)))
        *_, last = await generation.collect()
        assert last.finish is not None
        assert (last.token.text, last.delta, last.finish.text) == ("", "", "ab")

    with_puppet(check)


def test_a_stop_sequence_ends_the_request_and_the_core_forgets_it() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi", stop=("END",)))
        core.say("a", "so END and on")
        events = await generation.collect()
        finish = events[-1].finish
        assert finish is not None
        assert (finish.reason, finish.text, finish.text_before_stop) == (FinishReason.STOP, "so END", "so ")
        assert "".join(event.delta for event in events) == "so "
        assert core.aborted == ["a"]

    with_puppet(check)


def test_the_length_limit_comes_before_a_stop_sequence() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi", stop=("END",)))
        core.say("a", "so END", FinishReason.LENGTH)
        *_, last = await generation.collect()
        assert last.finish is not None
        assert last.finish.reason is FinishReason.LENGTH
        assert (last.finish.text, last.finish.text_before_stop) == ("so END", "so ")
        assert core.aborted == []

    with_puppet(check)


def test_text_held_back_for_a_stop_sequence_comes_with_the_last_event() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi", stop=("END",)))
        core.say("a", "so EN", FinishReason.LENGTH)
        events = await generation.collect()
        assert [event.delta for event in events] == ["s", "o", " ", "", "EN"]

    with_puppet(check)


def test_what_piled_up_comes_in_one_batch() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi"))
        core.say("a", "abc")
        await asyncio.sleep(0)
        assert "".join(event.delta for event in await generation.next_batch()) == "abc"
        core.say("a", "d", FinishReason.LENGTH)
        assert "".join(event.delta for event in await generation.next_batch()) == "d"
        assert await generation.next_batch() == ()

    with_puppet(check)


def test_a_frame_crosses_to_the_event_loop_once(monkeypatch: pytest.MonkeyPatch) -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generations = [await client.submit(Request(id=str(at), prompt="Hi")) for at in range(8)]
        loop = asyncio.get_running_loop()
        crossings: list[object] = []
        cross = loop.call_soon_threadsafe

        def counted(*args: Any) -> object:
            crossings.append(args)
            return cross(*args)

        monkeypatch.setattr(loop, "call_soon_threadsafe", counted)
        outputs = tuple(CoreOutput(str(at), 40, -0.5, finish=FinishReason.LENGTH) for at in range(8))
        sender = threading.Thread(target=core.sink, args=(Frame(outputs),))
        sender.start()
        for generation in generations:
            await generation.collect()
        monkeypatch.undo()
        sender.join()
        assert len(crossings) == 1

    with_puppet(check)


def test_prompt_log_probabilities_are_computed_only_where_the_engine_allows_them() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi", prompt_logprobs=True))
        allowed = client.config.enable_prefill_logprobs
        assert core.requests[0].prompt_logprobs is allowed
        logprobs = (None, -1.5) if allowed else None
        core.sink(Frame((CoreOutput("a", EOS, -0.5, finish=FinishReason.EOS, prompt_logprobs=logprobs),)))
        *_, last = await generation.collect()
        assert last.finish is not None
        prompt = [(token.text, token.logprob) for token in last.finish.prompt]
        assert prompt == ([("H", None), ("i", -1.5)] if allowed else [])

    with_puppet(check, enable_prefill_logprobs=False)
    with_puppet(check, enable_prefill_logprobs=True)


def test_alternatives_have_the_text_they_would_have_alone() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi", top_n_tokens=2))
        (at,) = TOKENIZER.encode("@", add_special_tokens=False)
        output = CoreOutput("a", at, -0.5, top=((at, -0.5), (EOS, -2.0)), finish=FinishReason.LENGTH)
        core.sink(Frame((output,)))
        (event,) = await generation.collect()
        assert [(token.text, token.logprob, token.special) for token in event.top_tokens] == [
            ("@", -0.5, False),
            ("<|im_end|>", -2.0, True),
        ]

    with_puppet(check)


def test_the_seed_is_reported_of_sampled_requests() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi", sampling=Sampling(sample=True, seed=7)))
        core.say("a", "x", FinishReason.LENGTH)
        (event,) = await generation.collect()
        assert event.finish is not None
        assert event.finish.seed == 7

    with_puppet(check)


# --- limits -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (Request(id="a", prompt=""), "`inputs` cannot be empty"),
        (
            Request(id="a", prompt="x", truncate=0),
            "`truncate` must be strictly positive and less than 20. Given: 0",
        ),
        (
            Request(id="a", prompt="x", truncate=21),
            "`truncate` must be strictly positive and less than 20. Given: 21",
        ),
        (Request(id="a", prompt="x", stop=("",)), '`stop` must not contain an empty string. Given: ""'),
        (
            Request(id="a", prompt="x" * 10, max_new_tokens=21),
            TOO_LONG.format(prompt=10, new=21),
        ),
        (
            Request(id="a", prompt="x" * 31),
            TOO_LONG.format(prompt=31, new=0),
        ),
        (
            Request(id="a", prompt="x" * 10, max_new_tokens=5000),
            TOO_LONG.format(prompt=10, new=1024),
        ),
        (
            Request(id="a", prompt="x" * 21, max_new_tokens=1),
            "`inputs` must have less than 20 tokens. Given: 21",
        ),
    ],
)
def test_a_request_out_of_its_limits_is_refused_in_the_words_of_tgi(request_: Request, message: str) -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        with pytest.raises(InvalidInput) as refusal:
            await client.submit(request_)
        assert str(refusal.value) == message
        assert core.requests == []

    with_puppet(check)


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "truncate", "ids", "budget"),
    [
        ("x" * 20, 10, None, 20, 10),
        ("x" * 5, None, None, 5, 25),
        ("x" * 40, 5, 8, 8, 5),
        ("x" * 3, 5, 20, 3, 5),
    ],
)
def test_a_request_within_its_limits_is_queued(
    prompt: str, max_new_tokens: int | None, truncate: int | None, ids: int, budget: int
) -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(
            Request(id="a", prompt=prompt, max_new_tokens=max_new_tokens, truncate=truncate)
        )
        (queued,) = core.requests
        assert (len(queued.prompt_ids), queued.max_new_tokens) == (ids, budget)
        assert generation.prompt_tokens == ids

    with_puppet(check)


def test_truncation_keeps_the_end_of_the_prompt() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        await client.submit(Request(id="a", prompt="abcdef", truncate=2))
        assert list(core.requests[0].prompt_ids) == TOKENIZER.encode("ef", add_special_tokens=False)

    with_puppet(check)


# --- admission ----------------------------------------------------------------------------------


def test_permits_are_counted_until_they_are_released() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        two = client.admit(2)
        with pytest.raises(Overloaded) as refusal:
            client.admit(2)
        assert 1 <= refusal.value.retry_after <= 60
        with client.admit():
            pass
        two.release()
        two.release()
        client.admit(3)
        with pytest.raises(Overloaded):
            client.admit()

    with_puppet(check, max_concurrent_requests=3)


def test_nothing_is_admitted_before_the_model_is_loaded() -> None:
    client = EngineClient(Puppet(), EngineConfig(), load_text)
    assert client.state is EngineState.LOADING
    with pytest.raises(NotReady, match="loading"):
        client.admit()
    with pytest.raises(NotReady):
        _ = client.model
    with pytest.raises(NotReady):
        asyncio.run(client.tokenize("a"))
    assert asyncio.run(client.probe()) is False


def test_a_model_that_cannot_be_loaded_leaves_the_engine_failed() -> None:
    async def run() -> None:
        client = fake_client(unavailable="no such model")
        with pytest.raises(ModelUnavailable, match="no such model"):
            await client.start(lambda message: None)
        assert client.state is EngineState.FAILED
        with pytest.raises(NotReady, match="failed"):
            client.admit()
        await client.close()

    asyncio.run(run())


def test_any_error_of_loading_becomes_model_unavailable() -> None:
    class Broken(Puppet):
        def load(self, progress: Callable[[str], None]) -> ModelInfo:
            raise MemoryError("no room")

    client = EngineClient(Broken(), EngineConfig(), load_text)
    with pytest.raises(ModelUnavailable, match="MemoryError: no room"):
        asyncio.run(client.start(lambda message: None))


# --- endings ------------------------------------------------------------------------------------


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
    monkeypatch.setattr("inference.client.WATCH_SECONDS", 0.01)

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


# --- health, listeners --------------------------------------------------------------------------


def test_after_a_failure_health_takes_a_real_generation() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        assert await client.probe() is True
        assert core.requests == []
        await client.submit(Request(id="a", prompt="Hi"))
        core.fail("a")
        await asyncio.sleep(0)
        probes = [asyncio.create_task(client.probe()) for _ in range(3)]
        await core.submitted(2)
        request = core.requests[1]
        assert request.max_new_tokens == 1
        core.say(request.id, "x", FinishReason.LENGTH)
        assert await asyncio.gather(*probes) == [True] * 3
        assert await client.probe() is True
        assert len(core.requests) == 2  # one generation answered all of them

    with_puppet(check)


def test_health_is_bad_while_the_generation_fails_or_takes_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("inference.client.PROBE_SECONDS", 0.01)

    async def check(client: EngineClient, core: Puppet) -> None:
        await client.submit(Request(id="a", prompt="Hi"))
        core.fail("a")
        await asyncio.sleep(0)
        assert await client.probe() is False  # nothing comes
        assert core.aborted == [core.requests[1].id]
        assert await client.probe() is False

    with_puppet(check)


def test_listeners_get_the_numbers_of_each_step() -> None:
    stats = StepStats(
        prefill_tokens=3,
        decode_sequences=1,
        admitted=1,
        forward_seconds=0.1,
        sample_seconds=0.01,
        waiting=0,
        running=2,
        kv_tokens=9,
        preempted=0,
    )

    async def check(client: EngineClient, core: Puppet) -> None:
        heard: list[StepStats] = []
        client.add_listener(heard.append)
        core.sink(Frame((), stats))
        core.sink(Frame(()))
        await asyncio.sleep(0)
        assert heard == [stats]

    with_puppet(check)


# --- with a core in a thread --------------------------------------------------------------------


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

    with_fake(check)


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

    with_fake(check)
