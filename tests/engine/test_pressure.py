"""A cache that is too small, prompts that wait, requests that are aborted: the texts stay the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel

from inference.scheduling.scheduler import Scheduler
from inference.sequences.state import Sequence
from inference.types import CoreFailure, Sampling
from tests.engine.cores import SECONDS, Session, config, request
from tests.engine.models import generate, prompts, save_model

PROMPTS = prompts(30, 5, 14, 41, 22, 9)
TOKENS = 40


@pytest.fixture(scope="module", params=["gemma2", "xglm"])
def model(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, PreTrainedModel]:
    directory = tmp_path_factory.mktemp(request.param)
    return directory, save_model(request.param, directory)


@pytest.fixture
def tight(model: tuple[Path, PreTrainedModel]) -> Iterator[Session]:
    session = Session(
        config(model[0], max_batch_total_tokens=144, max_total_tokens=96, max_batch_prefill_tokens=24)
    )
    yield session
    session.close()


def test_preempted_texts_are_what_they_would_have_been(
    tight: Session, model: tuple[Path, PreTrainedModel]
) -> None:
    heard = tight.run(request(str(i), prompt, tokens=TOKENS) for i, prompt in enumerate(PROMPTS))
    assert sum(stats.preempted for stats in heard.stats) > 0
    for index, prompt in enumerate(PROMPTS):
        assert heard.tokens(str(index)) == generate(model[1], prompt, TOKENS)


def test_preempted_seeded_texts_are_what_they_would_have_been(tight: Session) -> None:
    wanted = [
        request(
            str(i), prompt, tokens=TOKENS, sampling=Sampling(sample=True, seed=i, temperature=0.8, top_p=0.95)
        )
        for i, prompt in enumerate(PROMPTS)
    ]
    heard = tight.run(wanted)
    assert sum(stats.preempted for stats in heard.stats) > 0
    for each in wanted:
        assert heard.tokens(each.id) == tight.run([each]).tokens(each.id)


def test_prompt_preempted_in_its_middle_has_all_its_logprobs(
    model: tuple[Path, PreTrainedModel], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = Session(
        config(model[0], max_batch_total_tokens=112, max_batch_prefill_tokens=3, max_batch_size=2)
    )
    if session.level == "sequential":
        pytest.skip("its prompts are computed whole")
    preempted: list[tuple[str, bool]] = []
    preempt = Scheduler._preempt

    def note(scheduler: Scheduler, sequence: Sequence) -> None:
        preempted.append((sequence.id, 1 < sequence.computed < sequence.prompt_length))
        preempt(scheduler, sequence)

    monkeypatch.setattr(Scheduler, "_preempt", note)
    grows, long = prompts(15, 80)
    asked = request("long", long, tokens=2, prompt_logprobs=True, top=2)
    heard = session.run([request("grows", grows, tokens=60), asked])
    session.close()
    assert preempted == [("long", True)]
    output = heard.outputs["long"][0]
    assert output.prompt_logprobs is not None
    with torch.inference_mode():
        own = model[1](input_ids=torch.tensor([long])).logits[0, :-1].log_softmax(-1)
    expected = own[range(len(own)), long[1:]].tolist()
    assert list(output.prompt_logprobs[1:]) == pytest.approx(expected, abs=1e-4)
    assert output.prompt_top is not None
    found = [token for top in output.prompt_top.pairs() for token, _ in top]
    assert found == own.topk(2).indices.flatten().tolist()


def test_aborts_leave_the_others_alone(tight: Session, model: tuple[Path, PreTrainedModel]) -> None:
    for index, prompt in enumerate(PROMPTS):
        tight.core.submit(request(str(index), prompt, tokens=TOKENS))
    tight.core.abort("4")  # while it waits
    tight.core.start(tight.frames.put)
    kept = {"0", "2", "3", "5"}
    heard = {str(index): list[int]() for index in range(len(PROMPTS))}
    aborted_after = -1
    while kept:
        for output in tight.frames.get(timeout=SECONDS).outputs:
            assert not isinstance(output, CoreFailure)
            heard[output.id].append(output.token_id)
            if output.finish is not None:
                kept.discard(output.id)
        if aborted_after < 0 and heard["1"]:
            tight.core.abort("1")  # while it runs
            aborted_after = len(heard["1"])
    assert heard["4"] == []
    assert len(heard["1"]) < TOKENS
    for index in (0, 2, 3, 5):
        assert heard[str(index)] == generate(model[1], PROMPTS[index], TOKENS)
    after = tight.run([request("after", PROMPTS[1], tokens=TOKENS)])
    assert after.tokens("after") == generate(model[1], PROMPTS[1], TOKENS)
    assert after.stats[-1].kv_tokens == 0
