from __future__ import annotations

import numpy as np

from inference.sampling.noise import uniforms


def numbers(seeds: list[int], positions: list[int]) -> list[float]:
    return uniforms(np.array(seeds, np.uint64), np.array(positions, np.uint64)).tolist()


def splitmix_by_hand(seed: int, position: int) -> float:
    """The definition once more, in Python's integers."""
    mask = 2**64 - 1

    def mix(value: int) -> int:
        value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & mask
        value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & mask
        return value ^ (value >> 31)

    hashed = mix((mix((seed + 0x9E3779B97F4A7C15) & mask) + position * 0xD1342543DE82EF95) & mask)
    return (hashed >> 16) / 2**48


def test_numbers_are_those_of_the_definition() -> None:
    pairs = [(0, 0), (0, 1), (1, 0), (2**64 - 1, 5), (42, 2**40)]
    assert numbers([s for s, _ in pairs], [p for _, p in pairs]) == [
        splitmix_by_hand(*pair) for pair in pairs
    ]


def test_a_number_does_not_depend_on_its_neighbours() -> None:
    together = numbers([1, 2, 3], [10, 20, 30])
    assert together == [numbers([1], [10])[0], numbers([2], [20])[0], numbers([3], [30])[0]]


def test_numbers_are_uniform_along_positions_and_along_seeds() -> None:
    many = np.arange(64_000, dtype=np.uint64)
    for sample in (uniforms(np.full_like(many, 7), many), uniforms(many, np.full_like(many, 7))):
        counts = np.histogram(sample, bins=64, range=(0, 1))[0]
        chi_square = float(((counts - 1000) ** 2 / 1000).sum())
        assert 30 < chi_square < 110  # 63 degrees of freedom: outside once in ten thousand
        assert sample.min() >= 0
        assert sample.max() < 1


def test_neighbouring_positions_and_seeds_are_not_correlated() -> None:
    many = np.arange(10_000, dtype=np.uint64)
    along = uniforms(np.full_like(many, 1), many)
    across = uniforms(np.full_like(many, 2), many)
    assert abs(np.corrcoef(along[1:], along[:-1])[0, 1]) < 0.04
    assert abs(np.corrcoef(along, across)[0, 1]) < 0.04
