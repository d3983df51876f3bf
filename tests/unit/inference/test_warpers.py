from __future__ import annotations

from math import exp, inf, isinf, log

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from transformers import (  # noqa: E402
    LogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from inference.types import Sampling  # noqa: E402
from inference.warpers import History, warp  # noqa: E402

NO_HISTORY = History(np.array([0]), 1)


def history(prompt: list[int], generated: list[int]) -> History:
    return History(np.array([*prompt, *generated]), len(prompt))


def probabilities(logits: list[float], sampling: Sampling, seen: History = NO_HISTORY) -> list[float]:
    scores = warp(torch.tensor([logits]), [sampling], [seen])
    return torch.softmax(scores, 1)[0].tolist()


LOGS = [log(0.5), log(0.25), log(0.15), log(0.1)]

TABLE = [
    ("nothing", Sampling(), [0.5, 0.25, 0.15, 0.1]),
    (
        "temperature 0.5 squares",
        Sampling(temperature=0.5),
        [0.25 / 0.345, 0.0625 / 0.345, 0.0225 / 0.345, 0.01 / 0.345],
    ),
    ("top-k 2", Sampling(top_k=2), [2 / 3, 1 / 3, 0, 0]),
    ("top-k of the whole vocabulary", Sampling(top_k=4), [0.5, 0.25, 0.15, 0.1]),
    ("top-k beyond the vocabulary", Sampling(top_k=1000), [0.5, 0.25, 0.15, 0.1]),
    ("top-p needs a part of the second", Sampling(top_p=0.6), [2 / 3, 1 / 3, 0, 0]),
    ("top-p smaller than the best", Sampling(top_p=0.01), [1, 0, 0, 0]),
    ("top-p nearly 1", Sampling(top_p=0.999), [0.5, 0.25, 0.15, 0.1]),
    # entropy 1.208 nats; information 0.693, 1.386, 1.897, 2.303: the second is the most typical
    ("typical-p keeps the typical first", Sampling(typical_p=0.2), [0, 1, 0, 0]),
    ("typical-p then the likely", Sampling(typical_p=0.5), [2 / 3, 1 / 3, 0, 0]),
    ("top-k before top-p", Sampling(top_k=3, top_p=0.5), [1, 0, 0, 0]),
    ("temperature before top-p", Sampling(temperature=0.5, top_p=0.72), [1, 0, 0, 0]),
]


@pytest.mark.parametrize(("sampling", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_stages(sampling: Sampling, expected: list[float]) -> None:
    assert probabilities(LOGS, sampling) == pytest.approx(expected, abs=1e-6)


def test_ties_at_the_kth_score_stay() -> None:
    assert probabilities([3.0, 1.0, 1.0, 0.0], Sampling(top_k=2))[1:] == pytest.approx(
        [1 / (exp(2) + 2), 1 / (exp(2) + 2), 0]
    )


def test_repetition_counts_each_token_of_prompt_and_text_once() -> None:
    seen = history([0, 0, 2], [1, 1])
    scores = warp(torch.tensor([[2.0, -2.0, 1.0, 4.0]]), [Sampling(repetition_penalty=2.0)], [seen])
    assert scores[0].tolist() == [1.0, -4.0, 0.5, 4.0]


def test_repetition_of_a_shorter_history_penalises_nothing_else() -> None:
    scores = warp(
        torch.ones(2, 4), [Sampling(repetition_penalty=2.0)] * 2, [history([1, 2, 3], [3]), history([3], [])]
    )
    assert scores.tolist() == [[1.0, 0.5, 0.5, 0.5], [1.0, 1.0, 1.0, 0.5]]


@pytest.mark.parametrize("penalty", [1.4e-45, 1e-40, 1e-30, 1e30, 3.4e38])
def test_extreme_repetition_penalties_stay_numbers(penalty: float) -> None:
    seen = history([0, 1, 2], [2])
    scores = warp(torch.tensor([[50.0, -50.0, 0.0, 1.0]]), [Sampling(repetition_penalty=penalty)], [seen])
    assert torch.isfinite(scores).all()
    assert int(scores.argmax()) == (0 if penalty < 1 else 3)


def test_frequency_and_presence_count_generated_tokens_only() -> None:
    sampling = Sampling(frequency_penalty=0.5, presence_penalty=1.0)
    scores = warp(torch.zeros(2, 4), [sampling] * 2, [history([3, 3], [1, 1, 2]), history([3], [])])
    assert scores.tolist() == [[0.0, -2.0, -1.5, 0.0], [0.0, 0.0, 0.0, 0.0]]


@pytest.mark.parametrize("temperature", [1e-38, 1e-10, 1e10])
def test_extreme_temperatures_stay_numbers(temperature: float) -> None:
    found = probabilities([100.0, 99.0, -100.0], Sampling(temperature=temperature))
    expected = [1, 0, 0] if temperature < 1 else [1 / 3, 1 / 3, 1 / 3]
    assert found == pytest.approx(expected, abs=1e-6)


def test_rows_are_warped_as_if_alone_and_logits_stay_as_they_were() -> None:
    logits = torch.randn(6, 50, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    samplings = [
        Sampling(),
        Sampling(temperature=0.3, top_k=7),
        Sampling(top_p=0.8),
        Sampling(typical_p=0.7, repetition_penalty=1.3),
        Sampling(top_p=0.2, frequency_penalty=1.5),
        Sampling(top_k=3, presence_penalty=0.5),
    ]
    histories = [history(list(range(row + 1)), [row, row]) for row in range(6)]
    together = warp(logits, samplings, histories)
    alone = [
        warp(logits[row : row + 1], samplings[row : row + 1], histories[row : row + 1]) for row in range(6)
    ]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(logits, before)


def test_mass_that_needs_more_than_the_first_candidates_is_found() -> None:
    flat = torch.zeros(2, 5000)
    flat[0, 17] = 20.0  # beside a row that needs one token only
    kept = warp(flat, [Sampling(top_p=0.5)] * 2, [NO_HISTORY] * 2).isfinite().sum(1)
    assert kept.tolist() == [1, pytest.approx(2500, abs=1)]


IDS = torch.tensor([[1, 5, 5, 9], [3, 3, 3, 0]])

ORACLES: list[tuple[Sampling, LogitsProcessor]] = [
    (Sampling(temperature=0.7), TemperatureLogitsWarper(0.7)),
    (Sampling(top_k=5), TopKLogitsWarper(5)),
    (Sampling(top_p=0.8), TopPLogitsWarper(0.8)),
    (Sampling(top_p=0.3), TopPLogitsWarper(0.3)),
    (Sampling(typical_p=0.6), TypicalLogitsWarper(0.6)),
    (Sampling(typical_p=0.95), TypicalLogitsWarper(0.95)),
    (Sampling(repetition_penalty=1.4), RepetitionPenaltyLogitsProcessor(1.4)),
]


@pytest.mark.parametrize("scale", [0.5, 3.0])
@pytest.mark.parametrize(
    ("sampling", "processor"), ORACLES, ids=[str(type(each[1]).__name__) for each in ORACLES]
)
def test_stages_equal_those_of_transformers(
    sampling: Sampling, processor: LogitsProcessor, scale: float
) -> None:
    logits: Tensor = scale * torch.randn(2, 3000, generator=torch.Generator().manual_seed(3))
    histories = [history(ids, []) for ids in IDS.tolist()]
    ours = torch.softmax(warp(logits, [sampling] * 2, histories), 1)
    theirs = torch.softmax(processor(IDS, logits.clone()), 1)
    assert torch.allclose(ours, theirs, atol=1e-7)
    assert torch.equal(ours == 0, theirs == 0)


def test_no_filter_removes_everything() -> None:
    scores = warp(
        torch.tensor([[-inf, 1.0, -inf]]), [Sampling(top_p=0.1, typical_p=0.1, top_k=1)], [NO_HISTORY]
    )
    assert [isinf(score) for score in scores[0].tolist()] == [True, False, True]
