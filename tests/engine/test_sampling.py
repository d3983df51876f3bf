"""Seeds, penalties and log-probabilities through the whole engine."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedModel, RepetitionPenaltyLogitsProcessor

from inference.types import FinishReason, LogprobsMode, Sampling
from tests.engine.cores import Session, config, request
from tests.engine.models import VOCABULARY, generate, prompts, save_model

PROMPTS = prompts(12, 3, 40, 7)
SAMPLED = [
    Sampling(sample=True, seed=1),
    Sampling(sample=True, seed=2, temperature=0.7, top_k=20),
    Sampling(sample=True, seed=2**64 - 1, top_p=0.8, repetition_penalty=1.2),
    Sampling(sample=True, seed=4, typical_p=0.9, frequency_penalty=0.4, presence_penalty=0.3),
]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("qwen3")


@pytest.fixture(scope="module")
def model(directory: Path) -> PreTrainedModel:
    return save_model("qwen3", directory)


@pytest.fixture(scope="module")
def session(directory: Path, model: PreTrainedModel) -> Iterator[Session]:
    session = Session(config(directory, max_batch_prefill_tokens=16))
    yield session
    session.close()


def own_logprobs(model: PreTrainedModel, ids: list[int]) -> torch.Tensor:
    """Return transformers' log-softmax at each position, (tokens, vocabulary)."""
    with torch.inference_mode():
        return model(input_ids=torch.tensor([ids])).logits[0].log_softmax(-1)


def test_seeded_texts_are_the_same_alone_in_a_batch_and_in_another_order(session: Session) -> None:
    wanted = [request(str(i), prompt, sampling=SAMPLED[i]) for i, prompt in enumerate(PROMPTS)]
    together = session.run(wanted)
    backwards = session.run(reversed(wanted))
    for each in wanted:
        alone = session.run([each]).tokens(each.id)
        assert together.tokens(each.id) == backwards.tokens(each.id) == alone


def test_other_seeds_give_other_texts(session: Session) -> None:
    wanted = [request(str(seed), PROMPTS[0], sampling=Sampling(sample=True, seed=seed)) for seed in range(6)]
    heard = session.run(wanted)
    assert len({tuple(heard.tokens(each.id)) for each in wanted}) == 6


def test_raw_logprobs_and_top_tokens_are_those_of_transformers(
    session: Session, model: PreTrainedModel
) -> None:
    sampling = Sampling(sample=True, seed=3, temperature=2.0, top_k=30)
    outputs = session.run([request("a", PROMPTS[0], sampling=sampling, top=4)]).outputs["a"]
    ids = [*PROMPTS[0], *(output.token_id for output in outputs)]
    expected = own_logprobs(model, ids)
    for at, output in enumerate(outputs, start=len(PROMPTS[0]) - 1):
        assert output.logprob == pytest.approx(expected[at, output.token_id].item(), abs=1e-4)
        values, tokens = expected[at].topk(4)
        assert [token for token, _ in output.top] == tokens.tolist()
        assert [logprob for _, logprob in output.top] == pytest.approx(values.tolist(), abs=1e-4)


def test_processed_logprobs_are_of_the_penalised_scores(session: Session, model: PreTrainedModel) -> None:
    asked = request(
        "a", PROMPTS[0], tokens=8, sampling=Sampling(repetition_penalty=1.5), logprobs=LogprobsMode.PROCESSED
    )
    outputs = session.run([asked]).outputs["a"]
    ids = list(PROMPTS[0])
    penalise = RepetitionPenaltyLogitsProcessor(1.5)
    for output in outputs:
        with torch.inference_mode():
            logits = model(input_ids=torch.tensor([ids])).logits[:, -1]
        scores = penalise(torch.tensor([ids]), logits).log_softmax(-1)[0]
        assert output.token_id == int(scores.argmax())
        assert output.logprob == pytest.approx(scores.max().item(), abs=1e-4)
        ids.append(output.token_id)


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_prompt_logprobs_are_those_of_transformers(
    session: Session, model: PreTrainedModel, index: int
) -> None:
    prompt = PROMPTS[index]
    beside = request("beside", PROMPTS[(index + 1) % len(PROMPTS)])
    heard = session.run([request("a", prompt, tokens=2, prompt_logprobs=True), beside])
    found = heard.outputs["a"][0].prompt_logprobs
    assert found is not None
    assert found[0] is None
    expected = own_logprobs(model, list(prompt))[range(len(prompt) - 1), prompt[1:]].tolist()
    assert list(found[1:]) == pytest.approx(expected, abs=1e-4)
    assert heard.outputs["a"][1].prompt_logprobs is None
    assert heard.outputs["beside"][0].prompt_logprobs is None


@pytest.mark.parametrize("index", range(len(PROMPTS)))
def test_top_tokens_of_prompts_are_those_of_transformers(
    session: Session, model: PreTrainedModel, index: int
) -> None:
    prompt = PROMPTS[index]
    beside = request("beside", PROMPTS[(index + 1) % len(PROMPTS)], top=2)
    heard = session.run([request("a", prompt, tokens=2, prompt_logprobs=True, top=3), beside])
    told = heard.outputs["a"][0].prompt_top
    assert told is not None
    first, *found = told.pairs()
    assert first == ()
    values, tokens = own_logprobs(model, list(prompt))[:-1].topk(3)
    assert [[token for token, _ in top] for top in found] == tokens.tolist()
    assert [logprob for top in found for _, logprob in top] == pytest.approx(
        values.flatten().tolist(), abs=1e-4
    )
    assert heard.outputs["a"][1].prompt_top is None
    assert heard.outputs["beside"][0].prompt_top is None


def test_eos_is_hidden_as_in_transformers_below_the_least_number_of_tokens(
    session: Session, model: PreTrainedModel
) -> None:
    (eos,) = session.info.eos_token_ids
    likely = Sampling(logit_bias=((eos, 30.0),))
    for least in (0, 1, 7):
        own = generate(model, PROMPTS[0], 20, min_new_tokens=least, sequence_bias=[[[eos], 30.0]])
        assert len(own) == least + 1
        heard = session.run([request("a", PROMPTS[0], sampling=likely, min_tokens=least)])
        assert heard.tokens("a") == own
        assert heard.outputs["a"][-1].finish is FinishReason.EOS


def test_ignored_eos_is_a_token_like_any_other(session: Session, model: PreTrainedModel) -> None:
    (eos,) = session.info.eos_token_ids
    likely = Sampling(logit_bias=((eos, 2.5),))
    asked = request("a", PROMPTS[3], tokens=40, sampling=likely, ignore_eos=True)
    heard = session.run([asked])
    own = generate(model, PROMPTS[3], 40, sequence_bias=[[[eos], 2.5]], eos_token_id=VOCABULARY + 1)
    assert heard.tokens("a") == own
    assert eos in own[:-1]
    assert heard.outputs["a"][-1].finish is FinishReason.LENGTH


def test_eos_ends_a_text_and_counts(session: Session) -> None:
    (eos,) = session.info.eos_token_ids
    wanted = [
        request(str(seed), PROMPTS[1], tokens=200, sampling=Sampling(sample=True, seed=seed))
        for seed in range(5)
    ]
    heard = session.run(wanted)
    ended = [
        heard.outputs[each.id] for each in wanted if heard.outputs[each.id][-1].finish is FinishReason.EOS
    ]
    assert ended
    assert all([output.token_id for output in text].index(eos) == len(text) - 1 for text in ended)
