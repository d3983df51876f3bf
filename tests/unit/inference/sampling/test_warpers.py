from __future__ import annotations

from math import exp, inf, isinf, log

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from transformers import (  # noqa: E402
    LogitsProcessor,
    LogitsProcessorList,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    SequenceBiasLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
    TypicalLogitsWarper,
)

from inference.grammar.masks import Mask  # noqa: E402
from inference.sampling.candidates import filtered  # noqa: E402
from inference.sampling.recipe import filters_of  # noqa: E402
from inference.sampling.warpers import History, warp  # noqa: E402
from inference.types import Sampling, Watermark  # noqa: E402

NO_HISTORY = History(np.array([0]), 1)


def history(prompt: list[int], generated: list[int]) -> History:
    return History(np.array([*prompt, *generated]), len(prompt))


def left(
    logits: Tensor,
    samplings: list[Sampling],
    histories: list[History],
    masks: list[Mask | None] | None = None,
) -> Tensor:
    """Return the scores (n, v) that all stages and filters leave."""
    scores = warp(logits, samplings, histories, masks)
    filters = filters_of(samplings)
    rows = filters.any.nonzero()[0]
    if len(rows):
        some = filtered(scores[torch.from_numpy(rows)], filters.of(rows))
        kept = torch.full((len(rows), scores.shape[1]), -inf)
        for row, ids, values in zip(kept, some.ids, some.scores, strict=True):
            there = np.isfinite(values)
            row[torch.from_numpy(ids[there])] = torch.from_numpy(values[there]).float()
        scores = scores.index_copy(0, torch.from_numpy(rows), kept)
    return scores


def probabilities(logits: list[float], sampling: Sampling, seen: History = NO_HISTORY) -> list[float]:
    scores = left(torch.tensor([logits]), [sampling], [seen])
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
    ("min-p 0.3 is a share of the best", Sampling(min_p=0.3), [0.5 / 0.9, 0.25 / 0.9, 0.15 / 0.9, 0]),
    ("min-p 1 keeps the best", Sampling(min_p=1.0), [1, 0, 0, 0]),
    ("temperature before min-p", Sampling(temperature=0.5, min_p=0.3), [1, 0, 0, 0]),
    ("top-k before typical-p", Sampling(top_k=1, typical_p=0.2), [1, 0, 0, 0]),
    ("min-p before typical-p", Sampling(min_p=0.9, typical_p=0.2), [1, 0, 0, 0]),
    (
        "bias moves a token",
        Sampling(logit_bias=((3, log(5)),)),
        [0.5 / 1.4, 0.25 / 1.4, 0.15 / 1.4, 0.5 / 1.4],
    ),
    ("bias before top-k", Sampling(logit_bias=((0, -100.0), (2, 100.0)), top_k=1), [0, 0, 1, 0]),
]


@pytest.mark.parametrize(("sampling", "expected"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_stages(sampling: Sampling, expected: list[float]) -> None:
    assert probabilities(LOGS, sampling) == pytest.approx(expected, abs=1e-6)


def test_ties_at_the_kth_score_stay() -> None:
    assert probabilities([3.0, 1.0, 1.0, 0.0], Sampling(top_k=2))[1:] == pytest.approx(
        [1 / (exp(2) + 2), 1 / (exp(2) + 2), 0]
    )


@pytest.mark.parametrize("temperature", [1e-38, 1e-10, 1e10])
def test_extreme_temperatures_stay_numbers(temperature: float) -> None:
    found = probabilities([100.0, 99.0, -100.0], Sampling(temperature=temperature))
    expected = [1, 0, 0] if temperature < 1 else [1 / 3, 1 / 3, 1 / 3]
    assert found == pytest.approx(expected, abs=1e-6)


def test_rows_are_warped_as_if_alone_and_logits_stay_as_they_were() -> None:
    logits = torch.randn(9, 50, generator=torch.Generator().manual_seed(0))
    before = logits.clone()
    samplings = [
        Sampling(),
        Sampling(temperature=0.3, top_k=7),
        Sampling(top_p=0.8),
        Sampling(typical_p=0.7, repetition_penalty=1.3),
        Sampling(top_p=0.2, frequency_penalty=1.5),
        Sampling(top_k=3, presence_penalty=0.5),
        Sampling(min_p=0.3, watermark=Watermark(gamma=0.3, delta=1.0)),
        Sampling(logit_bias=((4, 2.0), (9, -1.0)), watermark=Watermark()),
        Sampling(logit_bias=((4, 1.0),), top_k=50),
    ]
    histories = [history(list(range(row + 1)), [row, row]) for row in range(9)]
    masks = [None if row % 3 else np.array([0b1101 << row, 3], dtype=np.uint32) for row in range(9)]
    together = left(logits, samplings, histories, masks)
    alone = [
        left(logits[at], samplings[at], histories[at], masks[at])
        for at in (slice(n, n + 1) for n in range(9))
    ]
    assert torch.equal(together, torch.cat(alone))
    assert torch.equal(logits, before)
    assert not any(torch.equal(together[row], logits[row]) for row in range(9))


@pytest.mark.parametrize("rows", [1, 3])
def test_logits_stay_as_they_were_when_every_row_has_the_same_stage(rows: int) -> None:
    logits = torch.zeros(rows, 40)
    mask = np.array([1, 1], dtype=np.uint32)
    left(logits, [Sampling(logit_bias=((3, 1.0),))] * rows, [NO_HISTORY] * rows, [mask] * rows)
    assert torch.equal(logits, torch.zeros(rows, 40))


def test_a_bias_does_not_bring_back_what_the_grammar_forbids() -> None:
    scores = left(
        torch.tensor([LOGS]),
        [Sampling(logit_bias=((0, 50.0),))],
        [NO_HISTORY],
        [np.array([0b1010], dtype=np.uint32)],
    )
    assert torch.softmax(scores, 1)[0].tolist() == pytest.approx([0, 0.25 / 0.35, 0, 0.1 / 0.35])


def test_filters_count_only_what_the_grammar_allows() -> None:
    scores = left(
        torch.tensor([LOGS]), [Sampling(top_k=1)], [NO_HISTORY], [np.array([0b1100], dtype=np.uint32)]
    )
    assert torch.softmax(scores, 1)[0].tolist() == [0, 0, 1, 0]


def test_mass_that_needs_more_than_the_first_candidates_is_found() -> None:
    flat = torch.zeros(2, 5000)
    flat[0, 17] = 20.0  # beside a row that needs one token only
    kept = left(flat, [Sampling(top_p=0.5)] * 2, [NO_HISTORY] * 2).isfinite().sum(1)
    assert kept.tolist() == [1, pytest.approx(2500, abs=1)]


IDS = torch.tensor([[1, 5, 5, 9], [3, 3, 3, 0]])

ORACLES: list[tuple[Sampling, LogitsProcessor]] = [
    (Sampling(temperature=0.7), TemperatureLogitsWarper(0.7)),
    (Sampling(top_k=5), TopKLogitsWarper(5)),
    (Sampling(top_p=0.8), TopPLogitsWarper(0.8)),
    (Sampling(top_p=0.3), TopPLogitsWarper(0.3)),
    (Sampling(min_p=0.2), MinPLogitsWarper(0.2)),
    (Sampling(min_p=0.02), MinPLogitsWarper(0.02)),
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
    ours = torch.softmax(left(logits, [sampling] * 2, histories), 1)
    theirs = torch.softmax(processor(IDS, logits.clone()), 1)
    assert torch.allclose(ours, theirs, atol=1e-7)
    assert torch.equal(ours == 0, theirs == 0)


def test_the_stages_come_in_the_order_of_transformers() -> None:
    sampling = Sampling(
        logit_bias=((1, 3.0), (5, -2.0)),
        repetition_penalty=1.3,
        temperature=0.6,
        top_k=40,
        top_p=0.9,
        min_p=0.03,
        typical_p=0.8,
    )
    theirs = LogitsProcessorList(
        [
            SequenceBiasLogitsProcessor({(1,): 3.0, (5,): -2.0}),
            RepetitionPenaltyLogitsProcessor(1.3),
            TemperatureLogitsWarper(0.6),
            TopKLogitsWarper(40),
            TopPLogitsWarper(0.9),
            MinPLogitsWarper(0.03),
            TypicalLogitsWarper(0.8),
        ]
    )
    logits: Tensor = 2 * torch.randn(2, 3000, generator=torch.Generator().manual_seed(5))
    ours = left(logits, [sampling] * 2, [history(ids, []) for ids in IDS.tolist()])
    expected = torch.softmax(theirs(IDS, logits.clone()), 1)
    assert torch.allclose(torch.softmax(ours, 1), expected, atol=1e-6)
    assert 1 < int((expected > 0).sum(1).min()) < 40


def test_no_filter_removes_everything() -> None:
    scores = left(
        torch.tensor([[-inf, 1.0, -inf]]),
        [Sampling(top_p=0.1, min_p=1.0, typical_p=0.1, top_k=1)],
        [NO_HISTORY],
    )
    assert [isinf(score) for score in scores[0].tolist()] == [True, False, True]
