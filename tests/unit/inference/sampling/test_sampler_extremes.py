from __future__ import annotations

from dataclasses import replace
from math import inf, isfinite

import pytest

torch = pytest.importorskip("torch")

from inference.sampling.warpers import History, warp  # noqa: E402
from inference.types import LogprobsMode, Sampling  # noqa: E402
from tests.unit.inference.sampled import PROCESSED, RAW, Choice, choose, sequence  # noqa: E402

EXTREMES = {
    **{f"temperature {value}": Sampling(temperature=value) for value in (1e-45, 1e-38, 1e-7, 3e38)},
    **{f"top-p {value}": Sampling(top_p=value) for value in (1e-45, 1e-30, 1 - 2**-24)},
    **{f"typical-p {value}": Sampling(typical_p=value) for value in (1e-45, 1e-30, 1 - 2**-24)},
    **{f"top-k {value}": Sampling(top_k=value) for value in (1, 99, 2**31 - 1, 2**62)},
    **{f"min-p {value}": Sampling(min_p=value) for value in (1e-45, 1e-30, 1.0)},
    **{f"repetition {value}": Sampling(repetition_penalty=value) for value in (1e-45, 1e-30, 3e38)},
    "occurrence": Sampling(frequency_penalty=-2.0, presence_penalty=2.0),
    "all small": Sampling(temperature=1e-45, top_k=1, top_p=1e-45, typical_p=1e-45),
    "all large": Sampling(temperature=3e38, top_k=2**62, top_p=1 - 2**-24, min_p=1.0, typical_p=1 - 2**-24),
}
ROWS = {
    "of a model": [2.5, -1.0, 0.0, 7.25, 7.0],
    "of equals": [0.0] * 5,
    "far apart": [1e4, -1e4, 0.0, 9.9e3, 1.0],
    "with one token left": [-inf, 1.0, -inf, -inf, -inf],
    "nearly zero": [1e-45, -1e-45, 0.0, 1e-38, 2e-38],
    "of many tokens": [at % 97 / 10 for at in range(3000)],
}


@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("sampling", EXTREMES.values(), ids=EXTREMES)
def test_extreme_values_leave_scores_that_are_numbers(sampling: Sampling, row: list[float]) -> None:
    logits = torch.tensor([row])
    (scores,) = warp(logits, [sampling], [History(sequence().ids, 2)])
    assert not scores.isnan().any()
    assert not (scores == inf).any()
    assert scores.isfinite().any()
    assert scores[logits[0] == -inf].eq(-inf).all()


@pytest.mark.parametrize("mode", [RAW, PROCESSED])
@pytest.mark.parametrize("row", ROWS.values(), ids=ROWS)
@pytest.mark.parametrize("sampling", EXTREMES.values(), ids=EXTREMES)
def test_extreme_values_choose_a_token_and_say_how_likely_it_is(
    sampling: Sampling, row: list[float], mode: LogprobsMode
) -> None:
    asked = [
        sequence(replace(sampling, sample=sample, seed=seed), mode=mode, top=3)
        for sample in (False, True)
        for seed in range(4)
    ]
    for chosen in choose(torch.tensor([row] * len(asked)), *asked):
        assert isinstance(chosen, Choice), chosen
        assert 0 <= chosen.token_id < len(row)
        assert row[chosen.token_id] > -inf
        assert isfinite(chosen.logprob)
        assert chosen.logprob <= 1e-6
        assert all(isfinite(logprob) for _, logprob in chosen.top)


def test_rows_of_extreme_values_are_chosen_as_if_alone() -> None:
    asked = [sequence(replace(each, sample=True), top=2) for each in EXTREMES.values()]
    logits = 3 * torch.randn(len(asked), 500, generator=torch.Generator().manual_seed(1))
    alone = [choose(row[None], each)[0] for row, each in zip(logits, asked, strict=True)]
    assert alone == choose(logits, *asked)
