from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from inference.frontend.client import EngineClient
from inference.prompt_tops import PromptTops
from inference.text.pipeline import TextPipeline
from inference.types import (
    CoreOutput,
    FinishReason,
    Frame,
    Request,
    Sampling,
    Token,
)
from tests.unit.inference.puppet import (
    EOS,
    TOKENIZER,
    Puppet,
    with_puppet,
)


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


def test_what_the_first_token_says_of_a_request_is_known_at_its_end() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi", stop=("END",)))
        core.sink(Frame((CoreOutput("a", 40, -0.5, started=123.5, cached_tokens=16),)))
        core.say("a", "so END and on")  # the core doesn't know that it has ended
        finish = (await generation.collect())[-1].finish
        assert finish is not None
        assert (finish.timings.started, finish.cached_tokens) == (123.5, 16)

    with_puppet(check)


@pytest.mark.parametrize(("stop", "before"), [("END", "so "), ("so END", ""), ("ENDS", None)])
def test_the_length_limit_comes_before_a_stop_sequence_and_the_text_is_whole(
    stop: str, before: str | None
) -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi", stop=(stop,)))
        core.say("a", "so END", FinishReason.LENGTH)
        events = await generation.collect()
        finish = events[-1].finish
        assert finish is not None
        assert (finish.reason, finish.text) == (FinishReason.LENGTH, "so END")
        assert "".join(event.delta for event in events) == finish.text_before_stop
        if before is None:
            assert (finish.text_before_stop, finish.stopped) == ("so END", False)
            assert finish.reason_before_stop is FinishReason.LENGTH
        else:
            assert (finish.text_before_stop, finish.stopped) == (before, True)
            assert finish.reason_before_stop is FinishReason.STOP
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


def test_prompt_tokens_have_their_log_probabilities_and_the_likeliest_in_their_place() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(
            Request(id="a", prompt="Hi", prompt_logprobs=True, prompt_top_n_tokens=2)
        )
        (at,) = TOKENIZER.encode("@", add_special_tokens=False)
        core.sink(
            Frame(
                (
                    CoreOutput(
                        "a",
                        EOS,
                        -0.5,
                        finish=FinishReason.EOS,
                        prompt_logprobs=(None, -1.5),
                        prompt_top=PromptTops.of([(), ((at, -0.25), (EOS, -2.0))]),
                    ),
                )
            )
        )
        (event,) = await generation.collect()
        first, second = event.prompt
        assert (first.text, first.logprob, list(first.top_tokens)) == ("H", None, [])
        assert (second.text, second.logprob) == ("i", -1.5)
        told = (Token(at, "@", -0.25, False), Token(EOS, "<|im_end|>", -2.0, True))
        assert tuple(second.top_tokens) == second.top_tokens[:] == told
        assert (len(second.top_tokens), second.top_tokens[-1]) == (2, told[1])
        assert (len(event.prompt), event.prompt[0].text, event.prompt[1:][0].id) == (2, "H", second.id)

    with_puppet(check)


def test_alternatives_of_a_prompt_are_made_when_somebody_looks_at_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(
            Request(id="a", prompt="Hi", prompt_logprobs=True, prompt_top_n_tokens=9)
        )
        asked: list[int] = []
        text_of = TextPipeline.token_text

        def noted(text: TextPipeline, token_id: int) -> str:
            asked.append(token_id)
            return text_of(text, token_id)

        monkeypatch.setattr(TextPipeline, "token_text", noted)
        tops = PromptTops.of([(), tuple((each, -1.0) for each in range(50, 59))])
        core.sink(
            Frame(
                (
                    CoreOutput(
                        "a",
                        40,
                        -0.5,
                        finish=FinishReason.LENGTH,
                        prompt_logprobs=(None, -1.5),
                        prompt_top=tops,
                    ),
                )
            )
        )
        (event,) = await generation.collect()
        assert set(range(50, 59)).isdisjoint(asked)
        assert len(event.prompt[1].top_tokens[:3]) == 3
        assert set(range(50, 59)) & set(asked) == {50, 51, 52}

    with_puppet(check)


def test_prompt_tokens_may_come_without_alternatives_and_need_not_come() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        for name, logprobs in (("a", (None, -1.5)), ("b", None)):
            generation = await client.submit(
                Request(id=name, prompt="Hi", prompt_logprobs=logprobs is not None)
            )
            core.sink(
                Frame((CoreOutput(name, 40, -0.5, finish=FinishReason.LENGTH, prompt_logprobs=logprobs),))
            )
            (event,) = await generation.collect()
            assert [(token.logprob, token.top_tokens) for token in event.prompt] == [
                (logprob, ()) for logprob in logprobs or ()
            ]

    with_puppet(check)


@pytest.mark.parametrize(
    ("minimum", "text"), [(0, "a END"), (5, "a END"), (6, "a END b END"), (11, "a END b END")]
)
def test_a_stop_sequence_counts_from_the_least_number_of_tokens_on(minimum: int, text: str) -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        request = Request(id="a", prompt="Hi", stop=("END",), min_new_tokens=minimum, max_new_tokens=15)
        generation = await client.submit(request)
        core.say("a", "a END b END c")
        events = await generation.collect()
        finish = events[-1].finish
        assert finish is not None
        assert (finish.reason, finish.text) == (FinishReason.STOP, text)
        assert finish.generated_tokens == len(text) >= minimum
        assert "".join(event.delta for event in events) == finish.text_before_stop == text[:-3]
        assert core.aborted == ["a"]

    with_puppet(check)


def test_an_ignored_eos_is_a_special_token_that_nobody_sees() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        generation = await client.submit(Request(id="a", prompt="Hi", ignore_eos=True, max_new_tokens=20))
        core.say("a", "so<|im_end|>")
        core.say("a", " on<|im_end|><|im_end|>")
        euro = TOKENIZER.encode("€", add_special_tokens=False)
        for token_id in (euro[0], EOS, *euro[1:]):
            core.sink(Frame((CoreOutput("a", token_id, -0.5),)))
        core.say("a", "<|im_end|>", FinishReason.LENGTH)
        events = await generation.collect()
        finish = events[-1].finish
        assert finish is not None
        assert "".join(event.delta for event in events) == finish.text == "so on€"
        assert finish.reason is FinishReason.LENGTH
        assert [event.token.special for event in events] == [event.token.id == EOS for event in events]
        assert sum(event.token.special for event in events) == 5
        assert finish.generated_tokens == len(events) == 13

    with_puppet(check)


def test_an_ignored_eos_whose_text_is_a_stop_sequence_stops() -> None:
    async def check(client: EngineClient, core: Puppet) -> None:
        request = Request(id="a", prompt="Hi", ignore_eos=True, min_new_tokens=4, stop=("<|im_end|>",))
        generation = await client.submit(request)
        core.say("a", "a<|im_end|>b<|im_end|>c")
        *_, last = await generation.collect()
        assert last.finish is not None
        assert (last.index, last.finish.reason, last.finish.text) == (4, FinishReason.STOP, "ab")

    with_puppet(check)


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
