from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.gpu import noise
from inference.gpu.batch import Draws, Sampled
from inference.kernels.gpu.sampling import BLOCK, sample
from tests.unit.inference.triton_device import DEVICE

INF = math.inf


def random(rows: int, vocabulary: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.randn(rows, vocabulary, generator=generator) * 3).to(DEVICE, dtype)


def draws(seeds: list[int], positions: list[int], temperatures: list[float], warped: list[bool]) -> Draws:
    return Draws(
        torch.tensor(seeds, device=DEVICE),
        torch.tensor(positions, device=DEVICE),
        torch.tensor(temperatures, dtype=torch.float32, device=DEVICE),
        torch.tensor(warped, device=DEVICE),
    )


def greedy(rows: int) -> Draws:
    return draws([0] * rows, [0] * rows, [0.0] * rows, [False] * rows)


def rows_of(how: Draws, rows: slice) -> Draws:
    return Draws(how.seeds[rows], how.positions[rows], how.temperatures[rows], how.warped[rows])


def assert_same(found: Sampled, expected: Sampled) -> None:
    """Compare with torch's way, whose logarithms may differ in their last digits."""
    assert found.tokens.tolist() == expected.tokens.tolist()
    assert found.finite.tolist() == expected.finite.tolist()
    torch.testing.assert_close(found.logprobs, expected.logprobs, rtol=1e-5, atol=2e-5, equal_nan=True)


requests = st.tuples(
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 2**31),
    st.sampled_from([0.0, 0.3, 1.0, 2.5]),
    st.booleans(),
)


@settings(deadline=None, max_examples=40)
@given(
    st.lists(requests, min_size=1, max_size=4),
    st.sampled_from([1, 2, 31, 1000, BLOCK, BLOCK + 1, 2 * BLOCK + 77]),
    st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
)
def test_tokens_and_logprobs_are_those_of_torchs_way(
    asked: list[tuple[int, int, float, bool]], vocabulary: int, dtype: torch.dtype
) -> None:
    how = draws(*(list(column) for column in zip(*asked, strict=True)))
    logits = random(len(asked), vocabulary, dtype, seed=vocabulary)
    assert_same(sample(logits, how), noise.sample(logits, how))


def test_logprobs_are_the_models_own_unless_warped() -> None:
    logits = random(3, 700)
    found = sample(logits, draws([5, 5, 5], [1, 1, 1], [0.5, 0.5, 0.0], [False, True, True]))
    raw, warped = logits.double().log_softmax(1), (logits.double() / 0.5).log_softmax(1)
    expected = torch.stack([raw[0, found.tokens[0]], warped[1, found.tokens[1]], raw[2].amax()])
    torch.testing.assert_close(found.logprobs.double(), expected, rtol=1e-5, atol=1e-5)


def test_of_equals_the_lowest_token_is_taken() -> None:
    vocabulary = 2 * BLOCK + 10
    logits = torch.zeros(4, vocabulary, device=DEVICE)
    for row, best in enumerate([(7, 8), (BLOCK - 1, BLOCK), (BLOCK + 3, 2 * BLOCK + 9), (vocabulary - 1,)]):
        logits[row, list(best)] = 1.0
    assert sample(logits, greedy(4)).tokens.tolist() == [7, BLOCK - 1, BLOCK + 3, vocabulary - 1]
    assert sample(torch.zeros(1, vocabulary, device=DEVICE), greedy(1)).tokens.tolist() == [0]


@pytest.mark.parametrize("bad", [math.nan, INF])
@pytest.mark.parametrize("at", [0, BLOCK - 1, BLOCK + 5])
def test_a_row_that_is_not_finite_says_so_and_others_do_not_notice(bad: float, at: int) -> None:
    logits = random(3, BLOCK + 6)
    how = draws([1, 2, 3], [4, 5, 6], [0.0, 1.0, 0.7], [False, True, False])
    expected = sample(logits, how)
    for row in range(3):
        broken = logits.clone()
        broken[row, at] = bad
        found = sample(broken, how)
        assert found.finite.tolist() == [each != row for each in range(3)]
        assert found.tokens[row] == 0
        assert found.logprobs[row].isnan()
        others = found.finite
        assert torch.equal(found.tokens[others], expected.tokens[others])
        assert torch.equal(found.logprobs[others], expected.logprobs[others])


def test_hidden_tokens_are_never_taken() -> None:
    logits = torch.full((3, BLOCK + 9), -INF, device=DEVICE)
    logits[:2, BLOCK + 4] = -50.0  # the other blocks hold nothing
    found = sample(logits, draws([1, 2, 3], [1, 2, 3], [0.0, 3.0, 3.0], [False, True, True]))
    assert found.tokens.tolist() == [BLOCK + 4, BLOCK + 4, 0]
    assert found.finite.tolist() == [True, True, False]  # a row of nothing but hidden tokens is none
    assert found.logprobs[:2].tolist() == [0.0, 0.0]


def test_the_smallest_temperature_takes_the_best() -> None:
    logits = random(2, 500)
    found = sample(logits, draws([1, 2], [3, 4], [1e-38, 1e-45], [True, False]))
    assert found.tokens.tolist() == logits.argmax(1).tolist()
    assert found.finite.all()


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    logits = random(4, BLOCK + 100)
    how = draws([9, 8, 7, 6], [1, 2, 3, 4], [1.0, 0.0, 0.5, 1.5], [True, False, False, True])
    together = sample(logits, how)
    for row in range(4):
        part = slice(row, row + 1)
        alone = sample(logits[part], rows_of(how, part))
        assert torch.equal(alone.tokens, together.tokens[part])
        assert torch.equal(alone.logprobs, together.logprobs[part])


def test_results_go_where_they_are_wanted() -> None:
    logits, how = random(2, 100), draws([1, 2], [3, 4], [1.0, 0.0], [False, False])
    into = Sampled(
        torch.full((2,), -1, device=DEVICE),
        torch.full((2,), torch.nan, device=DEVICE),
        torch.zeros(2, dtype=torch.bool, device=DEVICE),
    )
    assert sample(logits, how, out=into) is into
    assert_same(into, noise.sample(logits, how))


def test_rows_may_be_parts_of_wider_ones() -> None:
    wide, how = random(2, 300), draws([1, 2], [3, 4], [1.0, 0.0], [False, False])
    assert_same(sample(wide[:, :200], how), sample(wide[:, :200].contiguous(), how))


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 8, 256])
@pytest.mark.parametrize("vocabulary", [32000, 128256, 151936, 256000])
def test_vocabularies_of_real_models(rows: int, vocabulary: int) -> None:
    logits = random(rows, vocabulary, torch.bfloat16)
    temperatures = [(0.0, 0.7, 1.0)[row % 3] for row in range(rows)]
    how = draws(list(range(rows)), [row * 5 for row in range(rows)], temperatures, [False] * rows)
    found, expected = sample(logits, how), noise.sample(logits, how)
    assert (found.tokens == expected.tokens).float().mean() > 0.99  # but for near ties of the noise
    assert torch.equal(found.tokens[0::3], expected.tokens[0::3])
    same = found.tokens == expected.tokens
    torch.testing.assert_close(found.logprobs[same], expected.logprobs[same], rtol=1e-4, atol=1e-4)
