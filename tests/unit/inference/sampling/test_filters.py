from __future__ import annotations

from math import inf

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

torch = pytest.importorskip("torch")

from inference.sampling.filters import (  # noqa: E402
    Floats,
    forbid,
    keep_min_p,
    keep_top_k,
    keep_top_p,
    keep_typical_p,
)


def mask_of(allowed: set[int], words: int) -> NDArray[np.uint32]:
    mask = [sum(1 << bit for bit in range(32) if 32 * word + bit in allowed) for word in range(words)]
    return np.array(mask, dtype=np.uint32)


rows_of_ids = st.lists(st.sets(st.integers(0, 159)), min_size=1, max_size=4)


@given(st.integers(1, 150), rows_of_ids, st.integers(1, 5))
def test_a_mask_keeps_what_it_allows_and_nothing_beyond_its_end(
    vocabulary: int, allowed: list[set[int]], words: int
) -> None:
    logits = torch.randn(len(allowed), vocabulary, generator=torch.Generator().manual_seed(vocabulary))
    kept = forbid(logits, [mask_of(each, words) for each in allowed])
    expected = [
        [score if token in each and token < 32 * words else -inf for token, score in enumerate(row)]
        for each, row in zip(allowed, logits.tolist(), strict=True)
    ]
    assert kept.tolist() == expected


def test_masks_of_several_lengths_go_together() -> None:
    kept = forbid(torch.zeros(2, 70), [mask_of({1, 69}, 3), mask_of({1, 69}, 1)])
    assert kept.isfinite().nonzero().tolist() == [[0, 1], [0, 69], [1, 1]]


def test_what_is_not_a_number_stays_so() -> None:
    kept = forbid(torch.full((1, 40), torch.nan), [mask_of({1}, 2)])
    assert bool(kept.isnan().all())


def test_removed_tokens_stay_removed() -> None:
    scores = torch.tensor([[-inf, 1.0, 0.0]])
    assert forbid(scores, [mask_of({0, 2}, 1)]).tolist() == [[-inf, -inf, 0.0]]


def best_first(scores: list[float]) -> Floats:
    return np.array([sorted(scores, reverse=True)])


def test_tokens_without_mass_are_never_kept() -> None:
    scores = best_first([1.0, 0.0, -inf])
    for kept in (
        keep_min_p(scores, np.array([1e-300])),
        keep_top_p(scores, np.array([inf]), np.array([1.0])),
        keep_top_k(scores, np.array([0])),
    ):
        assert kept.tolist() == scores.tolist()


@given(st.lists(st.floats(-20, 20), min_size=2, max_size=9), st.floats(0.001, 1.0))
def test_min_p_keeps_what_is_likely_enough_beside_the_best(logits: list[float], p: float) -> None:
    scores = best_first(logits)
    ratios = np.exp(scores[0] - scores[0, 0]).tolist()
    kept = np.isfinite(keep_min_p(scores, np.array([p])))[0].tolist()
    for ratio, here in zip(ratios, kept, strict=True):
        assert here == (ratio >= p) or ratio == pytest.approx(p, rel=1e-6)


@given(st.lists(st.floats(-20, 20), min_size=1, max_size=9), st.floats(0.001, 0.999))
def test_top_p_keeps_the_fewest_of_the_best_that_have_the_mass(logits: list[float], p: float) -> None:
    scores = best_first(logits)
    mass = np.exp(scores[0] - scores[0, 0])
    kept = int(np.isfinite(keep_top_p(scores, np.array([p]), np.array([mass.sum()]))).sum())
    assert mass[:kept].sum() >= p * mass.sum() * (1 - 1e-9)
    assert mass[: kept - 1].sum() < p * mass.sum() * (1 + 1e-9)


@given(st.integers(0, 6).map(lambda power: 2**power), st.data())
def test_mass_that_is_reached_to_the_bit_needs_no_further_token(equals: int, data: st.DataObject) -> None:
    """Of tokens as likely as each other so many stay as have the mass, and not one more."""
    wanted = data.draw(st.integers(1, equals))
    scores, p = np.zeros((1, equals)), np.array([wanted / equals])
    for kept in (keep_top_p(scores, p, np.array([float(equals)])), keep_typical_p(scores, p)):
        assert sorted(kept[0].tolist()) == [-inf] * (equals - wanted) + [0.0] * wanted


@given(st.lists(st.integers(0, 12), min_size=1, max_size=5))
def test_top_k_of_each_row_is_its_own_and_may_exceed_what_there_is(ks: list[int]) -> None:
    scores = np.arange(8.0)[::-1].copy()[None].repeat(len(ks), 0)
    kept = keep_top_k(scores, np.array(ks))
    assert np.isfinite(kept).sum(1).tolist() == [min(k or 8, 8) for k in ks]
    assert kept.max(1).tolist() == scores.max(1).tolist()
