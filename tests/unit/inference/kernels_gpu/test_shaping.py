"""Filters and penalties by Triton's kernels: the tokens of torch's way, which are the host's."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.gpu import shaping as by_torch
from inference.kernels.gpu import shaping, walking
from inference.kernels.gpu.scores import PICK
from inference.kernels.gpu.shaping import CANDIDATES, Found, shape
from inference.types import Sampling
from tests.unit.inference.gpu.wished import PROMPT, Asked, Rows, asks, random_logits
from tests.unit.inference.triton_device import DEVICE, INTERPRETED

V = 1100 if INTERPRETED else 5000  # more than a program takes
BLOCKS = {"_BLOCK": 512, "_SPAN": 256} if INTERPRETED else {}
FEW = 16 if INTERPRETED else CANDIDATES  # the interpreter sorts slowly


@pytest.fixture(autouse=True, scope="module")
def _small_blocks() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, size in BLOCKS.items():  # so that rows have several, but not many
            patch.setattr(shaping, name, size)
        patch.setattr(walking, "_BLOCK", BLOCKS.get("_BLOCK", 4096))
        yield


def both(rows: Rows, candidates: int = FEW) -> tuple[Tensor, Tensor]:
    """Return what the kernels and torch choose."""
    ours, theirs = rows.drawn(), rows.drawn()
    shape(rows.logits, rows.wishes, ours, candidates=candidates)
    by_torch.shape(rows.logits, rows.wishes, theirs)
    return ours, theirs


def assert_same(found: tuple[Tensor, Tensor]) -> None:
    ours, theirs = found
    assert ours[:, 0].tolist() == theirs[:, 0].tolist()
    torch.testing.assert_close(ours[:, 1], theirs[:, 1], rtol=1e-5, atol=2e-5, equal_nan=True)


@settings(deadline=None, max_examples=8)
@given(
    st.lists(asks(V), min_size=1, max_size=3),
    st.integers(0, 10_000),
    st.sampled_from([0, 3]),
    st.sampled_from([1.0, 8.0]),
    st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_tokens_and_logprobs_are_those_of_torchs_way(
    asked: list[Asked], seed: int, levels: int, scale: float, dtype: torch.dtype
) -> None:
    logits = random_logits(len(asked), V, seed=seed, levels=levels, scale=scale)
    assert_same(both(Rows(asked, logits.to(DEVICE, dtype))))


@pytest.mark.parametrize("vocabulary", [1, 5, 64, 512, 513])
def test_vocabularies_of_any_size(vocabulary: int) -> None:
    ids = (0,) * PROMPT
    wanted = [Sampling(sample=True, top_k=3, top_p=0.7, seed=1), Sampling(repetition_penalty=2.0, min_p=0.1)]
    rows = Rows([Asked(sampling=each, ids=ids) for each in wanted], random_logits(2, vocabulary).to(DEVICE))
    assert_same(both(rows))


TIES = [
    Sampling(sample=True, top_k=3, seed=5),  # ties with the third stay
    Sampling(sample=True, top_p=0.5, seed=6),  # of equals the lowest ids stay
    Sampling(sample=True, top_k=300, top_p=0.25, seed=7),
    Sampling(sample=True, min_p=1.0, seed=8),
    Sampling(top_p=0.5),
]


@pytest.mark.parametrize("count", [20, 1024])
def test_equals_are_kept_and_dropped_as_by_sorting(count: int) -> None:
    logits = torch.full((len(TIES), V), -1000.0, device=DEVICE)
    logits[:, -count:] = 1.0
    rows = Rows([Asked(sampling=each) for each in TIES], logits)
    ours, theirs = both(rows)
    assert_same((ours, theirs))
    lowest = (ours[:, 0] - (V - count)).tolist()
    assert 0 <= lowest[1] < count // 2
    assert 0 <= lowest[2] < max(count // 4, 1)
    assert lowest[4] == 0


def test_flat_rows_are_walked_and_choose_alike() -> None:
    flat = [
        Sampling(sample=True, top_p=0.9, seed=1),
        Sampling(sample=True, top_k=FEW * 4, seed=2),
        Sampling(sample=True, top_k=FEW * 4, top_p=0.8, min_p=1e-4, seed=3, temperature=3.0),
        Sampling(sample=True, min_p=1e-6, seed=4),
        Sampling(sample=True, seed=5, presence_penalty=0.5),
        Sampling(frequency_penalty=0.5),
    ]
    rows = Rows([Asked(sampling=each) for each in flat], random_logits(len(flat), V, scale=0.1).to(DEVICE))
    assert_same(both(rows))


# There are fewer groups of neighbours than half of the candidates: each of such rows was walked. With a slope
# tokens are ordered by frequency, as by tokenizers, so that many more pass than groups
@pytest.mark.parametrize(
    ("vocabulary", "candidates", "slope", "top_k"),
    [
        (1100, 64, 0.0, 12),
        (1100, 64, 3.0, 25),
        pytest.param(32000, 1024, 0.0, 50, marks=pytest.mark.gpu),
        pytest.param(32000, 1024, 2.0, 50, marks=pytest.mark.gpu),
        pytest.param(128256, 1024, 2.0, 50, marks=pytest.mark.gpu),
    ],
)
def test_rows_of_which_few_tokens_pass_are_not_walked(
    vocabulary: int, candidates: int, slope: float, top_k: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = [
        Sampling(sample=True, top_p=0.9, seed=1),
        Sampling(sample=True, top_p=0.95, seed=2, temperature=0.7, repetition_penalty=1.2),
        Sampling(sample=True, min_p=0.01, seed=3),
        Sampling(sample=True, top_p=0.9, min_p=0.2, seed=4),
        Sampling(sample=True, top_k=top_k, seed=5),
        Sampling(sample=True, top_k=top_k, top_p=0.8, min_p=0.05, seed=6),
    ]
    ways: list[int] = []

    def note(found: Found, *rest: Any) -> None:
        ways.extend(found.ways.tolist())
        walking.walk(found, *rest)

    monkeypatch.setattr(shaping, "walk", note)
    logits = random_logits(len(few), vocabulary, scale=4.0)
    logits -= slope * torch.arange(50.0, 50.0 + vocabulary).log()
    rows = Rows([Asked(sampling=each) for each in few], logits.to(DEVICE))
    assert_same(both(rows, candidates))
    assert ways == [PICK.value] * len(few)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_row_that_is_not_finite_says_so_and_others_do_not_notice(bad: float) -> None:
    asked = [Asked(sampling=Sampling(sample=True, top_k=4, seed=seed)) for seed in range(3)]
    rows = Rows(asked, random_logits(3, V).to(DEVICE))
    expected = both(rows)[0]
    rows.logits[1, V - 50] = bad
    ours = both(rows)[0]
    assert ours[1, 0] == 0
    assert ours[1, 1].isnan()
    assert torch.equal(ours[::2], expected[::2])


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    asked = [
        Asked(sampling=Sampling(sample=True, top_k=5, top_p=0.9, seed=1, repetition_penalty=1.2)),
        Asked(sampling=Sampling()),
        Asked(sampling=Sampling(sample=True, temperature=2.0, top_p=0.95, seed=3), raw=True),
    ]
    logits = random_logits(3, V).to(DEVICE)
    together = both(Rows(asked, logits))[0]
    for row, each in enumerate(asked):
        assert torch.equal(both(Rows([each], logits[row : row + 1]))[0], together[row : row + 1])


def test_rows_may_be_parts_of_wider_ones() -> None:
    wide = random_logits(2, V + 8).to(DEVICE)
    asked = [Asked(sampling=Sampling(sample=True, top_k=5, seed=seed)) for seed in range(2)]
    ours, theirs = both(Rows(asked, wide[:, :V])), both(Rows(asked, wide[:, :V].contiguous()))
    assert_same(ours)
    assert torch.equal(ours[0], theirs[0])


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 64])
@pytest.mark.parametrize("vocabulary", [32000, 128256, 151936, 256000])
@pytest.mark.parametrize("scale", [1.0, 6.0])
def test_vocabularies_of_real_models(rows: int, vocabulary: int, scale: float) -> None:
    wanted = [
        Sampling(sample=True, top_k=50, top_p=0.9, seed=1, repetition_penalty=1.1),
        Sampling(sample=True, top_p=0.9, seed=2, temperature=0.7),
        Sampling(sample=True, min_p=0.05, seed=3, frequency_penalty=0.3),
    ]
    asked = [Asked(sampling=wanted[row % 3], raw=row % 2 > 0) for row in range(rows)]
    logits = random_logits(rows, vocabulary, scale=scale).to(DEVICE, torch.bfloat16)
    ours, theirs = both(Rows(asked, logits))
    same = ours[:, 0] == theirs[:, 0]
    assert same.float().mean() > 0.99  # but for sums that end at another bit
    torch.testing.assert_close(ours[same, 1], theirs[same, 1], rtol=1e-4, atol=1e-4)
