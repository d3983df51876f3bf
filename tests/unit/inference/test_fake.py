from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from queue import Queue

import pytest

from inference.client import EngineClient
from inference.errors import GenerationFailed
from inference.fake import FakeCore, FakeModel, fake_client
from inference.types import (
    CoreFailure,
    CoreOutput,
    CoreRequest,
    FinishReason,
    Frame,
    LogprobsMode,
    Request,
    Sampling,
)

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
from inference.fake import fake_client
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
