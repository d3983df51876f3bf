from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from queue import Queue
from typing import Any

import pytest

from inference.errors import GenerationFailed
from inference.fakes.core import FakeCore, FakeModel, fake_client
from inference.frontend.client import EngineClient
from inference.types import (
    CoreFailure,
    CoreOutput,
    CoreRequest,
    FinishReason,
    Frame,
    LogprobsMode,
    Request,
    Sampling,
    Watermark,
)
from tests.unit.inference.paper_grammar import PaperGrammar, PaperMatcher

MODEL = FakeModel(tokens=tuple(range(10, 60)), eos_token_id=2)
REQUEST = CoreRequest(
    id="a",
    prompt_ids=(1, 2, 3),
    max_new_tokens=100,
    sampling=Sampling(),
    logprobs=LogprobsMode.RAW,
    top_n_tokens=0,
    prompt_logprobs=False,
)


def answers(*requests: CoreRequest, model: FakeModel = MODEL) -> dict[str, list[CoreOutput | CoreFailure]]:
    """Return everything that a core says about each request, until all have ended."""
    frames: Queue[Frame] = Queue()
    core = FakeCore(model)
    core.start(frames.put)
    for request in requests:
        core.submit(request)
    said: dict[str, list[CoreOutput | CoreFailure]] = {request.id: [] for request in requests}
    ended = 0
    while ended < len(requests):
        for output in frames.get(timeout=10).outputs:
            said[output.id].append(output)
            ended += isinstance(output, CoreFailure) or output.finish is not None
    core.stop()
    assert not core.alive
    return said


def tokens(*requests: CoreRequest, model: FakeModel = MODEL) -> list[list[int]]:
    return [
        [output.token_id for output in outputs if isinstance(output, CoreOutput)]
        for outputs in answers(*requests, model=model).values()
    ]


def test_the_same_request_gets_the_same_answer_in_any_company() -> None:
    others = [replace(REQUEST, id=str(at), prompt_ids=(at,)) for at in range(40)]
    assert tokens(REQUEST) == tokens(REQUEST)
    assert tokens(*others, REQUEST)[-1] == tokens(REQUEST)[0]


def test_the_seed_matters_only_where_it_is_sampled() -> None:
    greedy = [replace(REQUEST, id=str(seed), sampling=Sampling(seed=seed)) for seed in range(2)]
    sampled = [replace(REQUEST, id=str(seed), sampling=Sampling(sample=True, seed=seed)) for seed in range(2)]
    first, second = tokens(*greedy)
    assert first == second
    first, second = tokens(*sampled)
    assert first != second


def test_an_answer_ends_with_eos_or_at_its_limit() -> None:
    (whole,) = tokens(REQUEST)
    assert whole[-1] == MODEL.eos_token_id
    assert set(whole[:-1]) <= set(MODEL.tokens)
    said = answers(replace(REQUEST, max_new_tokens=3))["a"]
    assert [output.finish for output in said if isinstance(output, CoreOutput)] == [
        None,
        None,
        FinishReason.LENGTH,
    ]
    exact = answers(replace(REQUEST, max_new_tokens=len(whole)))["a"][-1]
    assert isinstance(exact, CoreOutput)
    assert exact.finish is FinishReason.LENGTH  # the limit comes before EOS


def test_alternatives_are_distinct_and_best_first() -> None:
    for output in answers(replace(REQUEST, top_n_tokens=5))["a"]:
        assert isinstance(output, CoreOutput)
        ids, logprobs = zip(*output.top, strict=True)
        assert len(set(ids)) == 5
        assert list(logprobs) == sorted(logprobs, reverse=True)
        assert (ids[0], logprobs[0]) == (output.token_id, output.logprob)


def test_prompt_log_probabilities_come_with_the_first_token_only() -> None:
    first, second, *_ = answers(replace(REQUEST, prompt_logprobs=True))["a"]
    assert isinstance(first, CoreOutput)
    assert isinstance(second, CoreOutput)
    assert first.prompt_logprobs is not None
    assert first.prompt_logprobs[0] is None
    assert all(logprob is not None and logprob < 0 for logprob in first.prompt_logprobs[1:])
    assert len(first.prompt_logprobs) == len(REQUEST.prompt_ids)
    assert second.prompt_logprobs is None


def test_an_injected_failure_ends_its_request_only() -> None:
    bad = replace(REQUEST, id="bad", prompt_ids=(9,))
    model = replace(MODEL, fails=lambda request: "torn" if request.id == "bad" else None, fails_after=2)
    said = answers(bad, REQUEST, model=model)
    assert len(said["bad"]) == 3
    assert said["bad"][-1] == CoreFailure("bad", "torn")
    assert isinstance(said["a"][-1], CoreOutput)


def test_an_aborted_request_is_heard_of_no_more() -> None:
    frames: Queue[Frame] = Queue()
    core = FakeCore(replace(MODEL, step_seconds=0.001, shortest=10_000, longest=10_000))
    core.start(frames.put)
    core.submit(replace(REQUEST, max_new_tokens=20_000))
    frames.get(timeout=10)
    core.abort("a")
    core.abort("unknown")
    core.submit(replace(REQUEST, id="b", max_new_tokens=2))
    ids: set[str] = set()
    while "b" not in ids:  # b was submitted after a was aborted: from its first token on, a is silent
        ids = {output.id for output in frames.get(timeout=10).outputs}
    core.stop()
    assert ids == {"b"}


def test_an_instant_answer_can_be_aborted_between_its_tokens() -> None:
    core = FakeCore(replace(MODEL, shortest=100, longest=100))
    frames: list[Frame] = []

    def sink(frame: Frame) -> None:
        frames.append(frame)
        core.abort("a")

    core.start(sink)
    core.submit(replace(REQUEST, max_new_tokens=200))
    assert [len(frame.outputs) for frame in frames] == [1]


def only(*requests: CoreRequest, model: FakeModel = MODEL) -> list[CoreOutput]:
    """Return the outputs of one request, which must not fail."""
    (said,) = answers(*requests, model=model).values()
    assert not any(isinstance(output, CoreFailure) for output in said)
    return [output for output in said if isinstance(output, CoreOutput)]


SAMPLED = replace(REQUEST, sampling=Sampling(sample=True, seed=7))


@pytest.mark.parametrize(
    "change",
    [
        {"temperature": 0.5},
        {"top_k": 3},
        {"top_p": 0.5},
        {"typical_p": 0.5},
        {"min_p": 0.5},
        {"repetition_penalty": 1.5},
        {"frequency_penalty": 0.5},
        {"presence_penalty": 0.5},
        {"logit_bias": ((11, 1.0),)},
        {"watermark": Watermark()},
        {"watermark": Watermark(gamma=0.25)},
        {"watermark": Watermark(delta=1.0)},
        {"seed": 8},
    ],
    ids=str,
)
def test_every_parameter_of_sampling_changes_the_answer(change: dict[str, Any]) -> None:
    changed = replace(SAMPLED, sampling=replace(SAMPLED.sampling, **change))
    assert tokens(changed) != tokens(SAMPLED)


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"temperature": 0.5, "top_k": 3, "top_p": 0.5, "min_p": 0.5, "seed": 8}, False),
        ({"repetition_penalty": 1.5}, True),
        ({"presence_penalty": 1.5}, True),
        ({"logit_bias": ((11, 1.0),)}, True),
        ({"watermark": Watermark()}, True),
    ],
    ids=str,
)
def test_the_best_token_depends_on_what_changes_their_order(change: dict[str, Any], differs: bool) -> None:
    assert (tokens(replace(REQUEST, sampling=Sampling(**change))) != tokens(REQUEST)) is differs


def test_exclusive_biases_leave_no_choice() -> None:
    (always,) = tokens(replace(REQUEST, sampling=Sampling(logit_bias=((11, 100.0), (12, 100.0)))))
    assert set(always) == {11, 12}
    assert len(always) == REQUEST.max_new_tokens  # EOS is none of them
    few = replace(MODEL, tokens=(10, 11, 12))
    (never,) = tokens(replace(REQUEST, sampling=Sampling(logit_bias=((11, -100.0),))), model=few)
    assert set(never) == {10, 12, MODEL.eos_token_id}
    (ends,) = tokens(replace(REQUEST, sampling=Sampling(logit_bias=((MODEL.eos_token_id, 100.0),))))
    assert ends == [MODEL.eos_token_id]


def test_answers_are_at_least_as_long_as_asked_for() -> None:
    (short,) = tokens(REQUEST)
    (long,) = tokens(replace(REQUEST, min_new_tokens=60))
    assert len(short) < 60
    assert (len(long), long[-1]) == (61, MODEL.eos_token_id)
    assert long[: len(short) - 1] == short[:-1]


def test_ignored_eos_goes_on_to_the_length() -> None:
    said = only(replace(REQUEST, ignore_eos=True))
    assert [output.token_id for output in said].count(MODEL.eos_token_id) == 1
    assert len(said) == REQUEST.max_new_tokens
    assert said[-1].finish is FinishReason.LENGTH


def test_prompt_has_top_tokens_where_both_are_asked_for() -> None:
    said = only(replace(REQUEST, prompt_logprobs=True, prompt_top_n_tokens=3))
    assert said[0].prompt_top is not None
    first, *rest = said[0].prompt_top.pairs()
    assert first == ()
    assert [len(dict(top)) for top in rest] == [3, 3]
    assert [output.prompt_top for output in said[1:]] == [None] * (len(said) - 1)
    assert only(replace(REQUEST, prompt_logprobs=True, top_n_tokens=3))[0].prompt_top is None


RULE = PaperGrammar(lambda text: {4, 5, 6} if len(text) % 2 else {20, 21, MODEL.eos_token_id}, 2)


def test_grammars_are_followed_and_differ_with_the_prompt() -> None:
    texts = [tuple(tokens(replace(REQUEST, prompt_ids=(at,), grammar=RULE))[0]) for at in range(20)]
    assert len(set(texts)) > 10
    for text in texts:
        assert text[-1] == MODEL.eos_token_id
        assert set(text[:-1:2]) <= {20, 21}
        assert set(text[1:-1:2]) <= {4, 5, 6}


def test_script_is_followed_where_the_grammar_allows_it() -> None:
    model = replace(MODEL, script=lambda request: [20, 6, 21, 30])
    (said,) = tokens(replace(REQUEST, grammar=RULE), model=model)
    assert said[:3] == [20, 6, 21]
    assert said[3] in {4, 5, 6}


def test_matcher_that_fails_fails_its_request_alone() -> None:
    class NeverStarts(PaperGrammar):
        def start(self) -> PaperMatcher:
            raise RuntimeError("no way in")

    late = PaperGrammar(lambda text: {20} if len(text) < 3 else {1 // 0})
    said = answers(
        replace(REQUEST, id="late", grammar=late),
        replace(REQUEST, id="never", grammar=NeverStarts(late.rule)),
        REQUEST,
    )
    *before, failure = said["late"]
    assert len(before) == 3
    assert isinstance(failure, CoreFailure)
    assert "ZeroDivisionError" in failure.message
    (never,) = said["never"]
    assert isinstance(never, CoreFailure)
    assert "no way in" in never.message
    assert isinstance(said["a"][-1], CoreOutput)


def test_long_texts_under_a_grammar_are_brought_to_an_end() -> None:
    texts = ["", "word", '"', "]", "}", " ", "[", '"}', ","]
    ends = FakeModel(tokens=(1,), eos_token_id=0, texts=texts, shortest=5, longest=5)

    def rule(
        text: tuple[int, ...],
    ) -> set[int]:  # a string in a list in an object, each closed only from inside
        closed = [token for token in text if token in (2, 3, 4)]
        return {0} if closed == [2, 3, 4] else {1, 5, 6, 8, 2 + len(closed)}

    (said,) = tokens(replace(REQUEST, grammar=PaperGrammar(rule, 0)), model=ends)
    assert said == [1, 1, 1, 1, 1, 2, 3, 4, 0]


def with_client(test: Callable[[EngineClient], object], client: EngineClient) -> None:
    async def run() -> None:
        await client.start(lambda message: None)
        await test(client)  # type: ignore[misc]
        await client.close()

    asyncio.run(run())


def test_replies_and_failures_are_chosen_by_the_prompt() -> None:
    async def check(client: EngineClient) -> None:
        *_, last = await (await client.submit(Request(id="a", prompt="What time is it?"))).collect()
        assert last.finish is not None
        assert (last.finish.text, last.finish.reason) == ("Tea time ☕", FinishReason.EOS)
        with pytest.raises(GenerationFailed, match="injected failure: boom"):
            await (await client.submit(Request(id="b", prompt="Now boom!"))).collect()

    with_client(check, fake_client(replies={"time": "Tea time ☕"}, fail_prompts=("boom",)))


WITHOUT_TORCH = """
import asyncio, sys


class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers"}:
            raise ModuleNotFoundError(f"{name} is blocked", name=name)


sys.meta_path.insert(0, Block())
from inference.fakes.core import fake_client
from inference.types import Request


async def main():
    client = fake_client(replies={"Hi": "Hello!"})
    await client.start(lambda message: None)
    prompt = await client.render_chat([{"role": "user", "content": "Hi"}])
    events = await (await client.submit(Request(id="a", prompt=prompt))).collect()
    await client.close()
    print(events[-1].finish.text)


asyncio.run(main())
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""


def test_everything_runs_without_torch_and_transformers() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_TORCH], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "Hello!", "")
