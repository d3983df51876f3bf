"""Filters and penalties as a device computes them: the host's tokens, whatever is asked for."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.gpu.shaping import kept, shape, uniforms
from inference.gpu.wishes import row_of
from inference.sampling.filters import keep_min_p, keep_top_k, keep_top_p, weights
from inference.sampling.noise import uniforms as host_uniforms
from inference.types import Sampling
from tests.unit.inference.gpu.wished import Asked, Rows, asks, filters, random_logits

V = 150


def of_filters(scores: Tensor, sampling: Sampling) -> set[int]:
    """Return the tokens of a row (V,) that are left by the host's filters of a whole sorted row."""
    order = np.lexsort((np.arange(len(scores)), -scores.double().numpy()))
    row = scores.double().numpy()[order][None]
    row = keep_top_k(row, np.array([sampling.top_k]))
    top_p = sampling.top_p if sampling.top_p < 1 else np.inf
    row = keep_top_p(row, np.array([top_p]), weights(row).cumsum(1)[:, -1])
    row = keep_min_p(row, np.array([sampling.min_p]))
    return set(order[np.isfinite(row[0])].tolist())


@settings(deadline=None, max_examples=150)
@given(st.integers(0, 10_000), filters, st.sampled_from([0, 1, 4]), st.sampled_from([1, 3, V]))
def test_tokens_that_filters_leave_are_the_hosts(
    seed: int, sampling: Sampling, levels: int, count: int
) -> None:
    scores = random_logits(1, count, seed=seed, levels=levels)
    if count > 3:
        scores[0, seed % count] = -math.inf
    wishes = torch.tensor([row_of(Rows([Asked(sampling=sampling)], scores).sequences[0].request)])
    if not wishes[0, 0]:
        return
    left = kept(scores, wishes.double())[0].nonzero().flatten().tolist()
    assert set(left) == of_filters(scores[0], sampling)


@settings(deadline=None, max_examples=100)
@given(
    st.data(),
    st.integers(0, 10_000),
    st.sampled_from([0, 3]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_tokens_and_logprobs_are_the_hosts(
    data: st.DataObject, seed: int, levels: int, dtype: torch.dtype
) -> None:
    asked = data.draw(st.lists(asks(V), min_size=1, max_size=4))
    rows = Rows(asked, random_logits(len(asked), V, seed=seed, levels=levels).to(dtype))
    before = rows.drawn()
    drawn = before.clone()
    shape(rows.logits, rows.wishes, drawn)
    expected, shaped = rows.by_host(), rows.shaped()
    assert drawn[:, 0].numpy()[shaped].tolist() == expected.tokens[shaped].tolist()
    found, wanted = drawn[:, 1].numpy()[shaped], expected.logprobs[shaped]
    close = np.maximum(2e-5, rounding(asked, rows.logits)[shaped]) + 1e-5 * np.abs(wanted)
    assert (np.abs(found - wanted) <= close).all(), (found, wanted)
    others = torch.from_numpy(~shaped)
    assert torch.equal(drawn[others], before[others])  # to the last bit


def rounding(asked: list[Asked], logits: Tensor) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    """Return what float32 rounds away where the host subtracts two numbers as large as scores become."""
    penalties = np.clip([each.sampling.repetition_penalty for each in asked], 1e-30, 1e30)
    largest = logits.float().abs().amax(1).numpy() * np.maximum(penalties, 1 / penalties)
    return np.asarray(largest * 2.0**-23, dtype=np.float64)


def test_uniform_numbers_are_the_hosts() -> None:
    seeds = np.array([0, 1, 2**64 - 1, 2**63, 12345], dtype=np.uint64)
    positions = np.array([0, 7, 2**40, 3, 99], dtype=np.uint64)
    found = uniforms(torch.from_numpy(seeds.view(np.int64)), torch.from_numpy(positions.view(np.int64)))
    assert found.tolist() == host_uniforms(seeds, positions).tolist()


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_rows_that_are_not_finite_stay_so_and_others_do_not_notice(bad: float) -> None:
    asked = [
        Asked(sampling=Sampling(sample=True, top_p=0.8, seed=seed, repetition_penalty=1.3))
        for seed in range(3)
    ]
    rows = Rows(asked, random_logits(3, V))
    expected = rows.drawn()
    shape(rows.logits, rows.wishes, expected)
    rows.logits[1, 5] = bad
    drawn = rows.drawn()
    shape(rows.logits, rows.wishes, drawn)
    assert drawn[1, 0] == 0
    assert drawn[1, 1].isnan()
    assert torch.equal(drawn[::2], expected[::2])


def test_a_row_with_one_token_left_takes_it() -> None:
    logits = torch.full((2, V), -math.inf)
    logits[:, 77] = -3.0
    asked = [
        Asked(sampling=Sampling(sample=True, top_k=5, top_p=0.5)),
        Asked(sampling=Sampling(presence_penalty=1.0)),
    ]
    rows = Rows(asked, logits)
    drawn = rows.drawn()
    shape(rows.logits, rows.wishes, drawn)
    assert drawn.tolist() == [[77.0, 0.0], [77.0, 0.0]]


def test_drawn_tokens_come_as_often_as_the_filtered_distribution_says() -> None:
    count = 4000
    logits = random_logits(1, 40, scale=1.5)
    sampling = [Sampling(sample=True, top_k=6, temperature=0.9, seed=seed) for seed in range(count)]
    rows = Rows([Asked(sampling=each) for each in sampling], logits.expand(count, -1))
    drawn = rows.drawn()
    shape(rows.logits, rows.wishes, drawn)
    best = logits[0].topk(6)
    expected = (best.values.double() / 0.9).softmax(0) * count
    counts = torch.bincount(drawn[:, 0].long(), minlength=40)[best.indices]
    assert int(counts.sum()) == count
    assert float(((counts - expected) ** 2 / expected).sum()) < 25  # 5 degrees of freedom
