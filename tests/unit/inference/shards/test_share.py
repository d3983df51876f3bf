from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from inference.models.share import Share  # noqa: E402


@given(st.integers(1, 9), st.integers(0, 5000), st.sampled_from([1, 7, 64]))
def test_shares_are_all_that_there_is_one_behind_the_other(count: int, total: int, unit: int) -> None:
    bounds = [Share(rank, count).bounds(total, unit) for rank in range(count)]
    assert [end for _, end in bounds[:-1]] == [first for first, _ in bounds[1:]]
    assert (bounds[0][0], bounds[-1][1]) == (0, total)
    assert all(first % unit == 0 for first, _ in bounds)
    sizes = [end - first for first, end in bounds]
    assert max(sizes) - min(sizes) < 2 * unit


@given(st.integers(1, 9), st.integers(1, 40), st.booleans())
def test_shares_of_a_head_are_alike_and_end_with_zeros(count: int, rows: int, biased: bool) -> None:
    weight, bias = torch.rand(rows, 3) + 1, torch.rand(rows) + 1 if biased else None
    shares = [Share(rank, count).head(weight, bias) for rank in range(count)]
    assert len({tuple(part.shape) for part, _ in shares}) == 1
    whole = torch.cat([part for part, _ in shares])
    assert torch.equal(whole[:rows], weight)
    assert not whole[rows:].any()
    if bias is not None:
        biases = torch.cat([part for _, part in shares if part is not None])
        assert torch.equal(biases[:rows], bias)
        assert len(biases) == len(whole)
