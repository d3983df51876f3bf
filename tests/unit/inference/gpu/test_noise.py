from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from inference.gpu.batch import Draws
from inference.gpu.noise import MOST, bits, gumbel, sample

MASK = 2**64 - 1


def bits_by_hand(seed: int, position: int, token: int) -> int:
    """The definition once more, in Python's integers."""

    def mix64(value: int) -> int:
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & MASK
        return value ^ (value >> 31)

    def mix32(value: int) -> int:
        value = ((value ^ (value >> 16)) * 0x7FEB352D) & 0xFFFFFFFF
        value = ((value ^ (value >> 15)) * 0x846CA68B) & 0xFFFFFFFF
        return value ^ (value >> 16)

    key = mix64((mix64((seed + 0x9E3779B97F4A7C15) & MASK) + position * 0xD1342543DE82EF95) & MASK)
    return mix32(mix32((token * 0x9E3779B9 + (key & 0xFFFFFFFF)) & 0xFFFFFFFF) ^ (key >> 32))


def chi_square(counts: Tensor, expected: Tensor) -> float:
    return float(((counts.double() - expected) ** 2 / expected).sum())


def draws(seeds: Tensor, positions: Tensor, temperature: float) -> Draws:
    temperatures = torch.full(seeds.shape, temperature)
    return Draws(seeds, positions, temperatures, torch.zeros(len(seeds), dtype=torch.bool))


def test_bits_are_those_of_the_definition() -> None:
    pairs = [(0, 0), (0, 1), (1, 0), (-1, 5), (42, 2**40), (-(2**63), 7)]
    seeds, positions = (torch.tensor(column) for column in zip(*pairs, strict=True))
    assert bits(seeds, positions, 9).tolist() == [
        [bits_by_hand(seed & MASK, position, token) for token in range(9)] for seed, position in pairs
    ]


@pytest.mark.parametrize("along", ["seeds", "positions", "tokens"])
def test_bits_are_uniform_along_each_axis(along: str) -> None:
    count = 64_000
    many, one = torch.arange(count), torch.full((count,), 7)
    if along == "tokens":
        sequence = bits(one[:1], one[:1], count)[0]
    else:
        sequence = bits(many if along == "seeds" else one, many if along == "positions" else one, 3)[:, 2]
    for low in (0, 13, 26):  # the upper, the middle and the lowest bits
        counts = torch.bincount(sequence >> low & 63, minlength=64)
        assert 30 < chi_square(counts, torch.full((64,), count / 64)) < 110  # 63 degrees of freedom
    uniform = sequence.double() / 2**32
    pairs = torch.stack([uniform[1:], uniform[:-1]])
    assert abs(float(torch.corrcoef(pairs)[0, 1])) < 0.02


def test_tokens_of_one_draw_never_share_their_bits() -> None:
    random = bits(torch.tensor([3]), torch.tensor([9]), 100_000)[0]
    assert len(random.unique()) == 100_000


def test_noise_is_finite_at_both_ends() -> None:
    ends = gumbel(torch.tensor([0, 1, 2**31, 2**32 - 2, 2**32 - 1]))
    exact = [-math.log(-math.log1p(-v)) for v in (2.0**-33, 1.5 * 2.0**-32, 0.5, MOST, MOST)]
    torch.testing.assert_close(ends.double(), torch.tensor(exact, dtype=torch.float64), rtol=1e-6, atol=1e-7)


def test_noise_keeps_its_digits_where_the_series_ends() -> None:
    random = torch.arange(2**26 - 500, 2**26 + 500)
    v = (random.float() + 0.5).double() / 2**32
    torch.testing.assert_close(gumbel(random).double(), -(-torch.log1p(-v)).log(), rtol=3e-6, atol=0)


@pytest.mark.parametrize("temperature", [0.5, 1.0, 3.0])
def test_tokens_are_drawn_as_often_as_softmax_says(temperature: float) -> None:
    count, vocabulary = 20_000, 40
    logits = torch.randn(vocabulary, generator=torch.Generator().manual_seed(1)) * 1.5
    how = draws(torch.full((count,), 11), torch.arange(count), temperature)
    tokens = sample(logits.expand(count, -1), how).tokens
    expected = (logits.double() / temperature).softmax(0) * count
    common = expected >= 5  # what chi-square asks for
    counts = torch.bincount(tokens, minlength=vocabulary)
    counts = torch.cat([counts[common], counts[~common].sum()[None]])
    expected = torch.cat([expected[common], expected[~common].sum()[None].clamp(min=1e-9)])
    degrees = len(counts) - 1
    # Within five standard deviations of its mean: the seed is fixed, and another fails once in millions
    assert abs(chi_square(counts, expected) - degrees) < 5 * math.sqrt(2 * degrees)


def test_a_flat_row_does_not_prefer_low_tokens() -> None:
    count, vocabulary = 400, 20_000
    how = draws(torch.arange(count), torch.zeros(count, dtype=torch.int64), 1.0)
    tokens = sample(torch.zeros(1, vocabulary).expand(count, -1), how).tokens
    counts = torch.histc(tokens.float(), bins=8, min=0, max=vocabulary)
    assert chi_square(counts, torch.full((8,), count / 8)) < 35  # 7 degrees of freedom


def test_a_token_depends_on_nothing_but_its_row() -> None:
    logits = torch.randn(3, 500, generator=torch.Generator().manual_seed(0))
    seeds, positions = torch.tensor([1, 2, 3]), torch.tensor([4, 5, 6])
    together = sample(logits, draws(seeds, positions, 1.0)).tokens
    alone = [sample(logits[i : i + 1], draws(seeds[i : i + 1], positions[i : i + 1], 1.0)) for i in range(3)]
    assert together.tolist() == [int(each.tokens) for each in alone]
