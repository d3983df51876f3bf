from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from inference.sampling.watermark import Detection, detect, scatter, seeds, threshold

VOCABULARY = 5000


def green(before: int, gamma: float, vocabulary: int = VOCABULARY) -> np.ndarray:
    """Return which tokens are green after a token."""
    return scatter(seeds(np.array([before])), np.arange(vocabulary, dtype=np.int32)) < threshold(gamma)


def random_text(seed: int, tokens: int) -> list[int]:
    ids: list[int] = np.random.default_rng(seed).integers(0, VOCABULARY, tokens).tolist()
    return ids


def green_text(gamma: float, tokens: int) -> list[int]:
    """Return a text whose tokens are all green, but the first."""
    random = np.random.default_rng(0)
    ids = [11]
    while len(ids) < tokens:
        ids.append(int(random.choice(np.flatnonzero(green(ids[-1], gamma)))))
    return ids


@pytest.mark.parametrize("gamma", [0.05, 0.25, 0.5, 0.9])
def test_the_green_list_is_a_share_gamma_of_the_vocabulary(gamma: float) -> None:
    shares = [green(before, gamma, 50_000).mean() for before in range(40)]
    deviation = (gamma * (1 - gamma) / 50_000) ** 0.5  # of a binomial
    assert np.mean(shares) == pytest.approx(gamma, abs=4 * deviation / 40**0.5)
    assert np.std(shares) == pytest.approx(deviation, rel=0.5)


def test_green_lists_of_different_tokens_have_nothing_in_common_but_chance() -> None:
    lists = np.array([green(before, 0.5, 4000) for before in range(100)])
    correlations = np.corrcoef(lists) - np.eye(100)
    assert np.abs(correlations).max() < 5.5 / 4000**0.5
    often = lists.mean(0)  # how often each token is green
    assert often.std() == pytest.approx((0.25 / 100) ** 0.5, rel=0.1)


def test_hashing_is_one_to_one() -> None:
    hashes = scatter(seeds(np.array([3])), np.arange(1 << 16, dtype=np.int32))
    assert len(np.unique(hashes)) == 1 << 16


@given(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=5), st.integers(1, 300))
def test_tensors_are_hashed_as_arrays_are(before: list[int], vocabulary: int) -> None:
    torch = pytest.importorskip("torch")
    keys = seeds(np.array(before))[:, None]
    tokens = np.arange(vocabulary, dtype=np.int32)
    hashed = scatter(torch.from_numpy(keys), torch.from_numpy(tokens))
    assert hashed.tolist() == scatter(keys, tokens).tolist()


@pytest.mark.parametrize("gamma", [1e-12, 0.25, 0.5, 1 - 1e-12])
def test_every_gamma_has_a_threshold_within_int32(gamma: float) -> None:
    share = (threshold(gamma) + 2**31) / 2**32
    assert share == pytest.approx(gamma, abs=2**-31)
    np.array([threshold(gamma)], dtype=np.int32)  # raises for what does not fit


@pytest.mark.parametrize("gamma", [0.25, 0.5])
def test_a_text_of_green_tokens_is_found(gamma: float) -> None:
    ids = green_text(gamma, 61)
    found = detect(ids, gamma=gamma)
    assert (found.green_tokens, found.scored_tokens) == (60, 60)
    assert found.z_score == pytest.approx((60 - gamma * 60) / (60 * gamma * (1 - gamma)) ** 0.5)
    assert found.p_value == pytest.approx(1 - NormalDist().cdf(found.z_score), abs=1e-12)
    assert found.p_value < 1e-6


def test_texts_without_the_mark_score_as_chance_does() -> None:
    scores = np.array([detect(random_text(seed, 200), gamma=0.3).z_score for seed in range(300)])
    assert abs(scores.mean()) < 0.2
    assert scores.std() == pytest.approx(1, abs=0.15)
    assert scores.max() < 4


def test_another_gamma_or_another_order_hides_the_mark() -> None:
    ids = green_text(0.25, 200)
    assert detect(ids, gamma=0.25).z_score > 20
    assert detect(ids[::-1], gamma=0.25).z_score < 4
    assert detect(ids, gamma=0.5).green_tokens == 199  # the smaller list is part of the larger


def test_a_pair_that_comes_again_counts_once() -> None:
    assert detect([7, 8] * 50, gamma=0.5).scored_tokens == 2
    assert detect([4] * 100, gamma=0.5).scored_tokens == 1


@pytest.mark.parametrize("ids", [[], [5]])
def test_a_text_without_pairs_says_nothing(ids: list[int]) -> None:
    assert detect(ids, gamma=0.5) == Detection(0.0, 0, 0, 0.5)


@pytest.mark.parametrize("gamma", [0.0, 1.0, -1.0, float("nan")])
def test_a_gamma_that_is_no_share_is_refused(gamma: float) -> None:
    with pytest.raises(ValueError, match="`gamma` must be > 0 and < 1"):
        detect([1, 2, 3], gamma=gamma)
