from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from inference.sampling.penalties import History  # noqa: E402
from inference.sampling.warpers import warp  # noqa: E402
from inference.sampling.watermark import scatter, seeds, threshold  # noqa: E402
from inference.types import Sampling, Watermark  # noqa: E402


def history(prompt: list[int], generated: list[int]) -> History:
    return History(np.array([*prompt, *generated]), len(prompt))


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


@given(
    st.lists(
        st.dictionaries(st.integers(0, 11), st.floats(-100, 100, width=32), max_size=6),
        min_size=1,
        max_size=4,
    )
)
def test_a_bias_is_added_to_its_token_and_to_no_other(biases: list[dict[int, float]]) -> None:
    logits = torch.arange(10.0).repeat(len(biases), 1)
    samplings = [Sampling(logit_bias=tuple(sorted(bias.items()))) for bias in biases]
    scores = warp(logits, samplings, [history([0], [])] * len(biases))
    expected = [[token + bias.get(token, 0.0) for token in range(10)] for bias in biases]
    # ids 10 and 11 are tokens of the tokenizer's that the model has no logit for
    assert torch.equal(scores, torch.tensor(expected))


def test_a_bias_comes_before_the_repetition_penalty() -> None:
    sampling = Sampling(logit_bias=((1, 3.0),), repetition_penalty=2.0)
    scores = warp(torch.tensor([[0.0, 1.0]]), [sampling], [history([1], [])])
    assert scores.tolist() == [[0.0, 2.0]]


def test_the_watermark_raises_the_green_tokens_of_the_last_token() -> None:
    marks = [Watermark(gamma=0.25, delta=1.5), Watermark(gamma=0.8, delta=3.0)]
    seen = [history([7, 3], [5]), history([9], [])]
    scores = warp(torch.zeros(2, 500), [Sampling(watermark=mark) for mark in marks], seen)
    for row, mark, last in zip(scores.numpy(), marks, (5, 9), strict=True):
        hashes = scatter(seeds(np.array([last])), np.arange(500, dtype=np.int32))
        assert row.tolist() == np.where(hashes < threshold(mark.gamma), mark.delta, 0.0).tolist()


def test_the_watermark_comes_before_the_penalties() -> None:
    mark = Watermark(gamma=0.5, delta=1.0)
    penalised = Sampling(watermark=mark, repetition_penalty=2.0)
    seen = history([*range(100)], [])
    marked = warp(torch.ones(1, 100), [Sampling(watermark=mark)], [seen])
    assert torch.equal(warp(torch.ones(1, 100), [penalised], [seen]), marked / 2)


def test_repetition_leaves_out_what_has_no_score() -> None:
    """Marks of images have an embedding, and no logit."""
    seen = [history([1, 9], [4]), history([7], [])]
    scores = warp(torch.ones(2, 4), [Sampling(repetition_penalty=2.0)] * 2, seen)
    assert scores.tolist() == [[1.0, 0.5, 1.0, 1.0], [1.0, 1.0, 1.0, 1.0]]
