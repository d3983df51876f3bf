from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.kernels.gpu.norm import add_rms_norm, rms_norm
from tests.unit.inference.triton_device import DEVICE

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
DTYPES = st.sampled_from(list(TOLERANCES))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def normed_by_hand(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    x = x.double()
    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight.double()


def assert_close(found: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    error = (found.double() - expected).abs() / (expected.abs() + 1)
    assert error.max() <= TOLERANCES[dtype]


@settings(deadline=None)
@given(
    st.integers(1, 3),
    st.integers(1, 200),
    DTYPES,
    st.sampled_from([1e-5, 1e-6]),
    st.sampled_from([0.01, 1, 50]),
)
def test_a_row_is_divided_by_its_root_mean_square(
    rows: int, width: int, dtype: torch.dtype, eps: float, size: float
) -> None:
    x, weight = random(rows, width, dtype=dtype) * size, 1 + random(width, seed=1)
    assert_close(rms_norm(x, weight, eps), normed_by_hand(x, weight, eps), dtype)


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 200), DTYPES, st.sampled_from([1.0, 0.22]))
def test_what_is_normed_is_the_sum_as_it_was_rounded(
    rows: int, width: int, dtype: torch.dtype, factor: float
) -> None:
    x, stream = random(rows, width, dtype=dtype), random(rows, width, dtype=dtype, seed=1)
    weight = random(width, seed=2)
    normed, added = add_rms_norm(x, stream, weight, 1e-6, factor)
    assert_close(added, stream.double() + factor * x.double(), dtype)
    assert_close(normed, normed_by_hand(added, weight, 1e-6), dtype)


def test_the_stream_may_be_added_to_in_place() -> None:
    x, stream, weight = random(2, 40), random(2, 40, seed=1), random(40, seed=2)
    expected = add_rms_norm(x, stream.clone(), weight, 1e-6)
    into = torch.full_like(x, torch.nan)
    normed, added = add_rms_norm(x, stream, weight, 1e-6, out=(into, stream))
    assert normed is into
    assert added is stream
    assert torch.equal(normed, expected[0])
    assert torch.equal(added, expected[1])


def test_rows_may_be_parts_of_wider_ones() -> None:
    wide, weight = random(3, 96), random(32, seed=1)
    part = wide[:, 32:64]
    assert torch.equal(rms_norm(part, weight, 1e-6), rms_norm(part.contiguous(), weight, 1e-6))


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    x, stream, weight = random(5, 130), random(5, 130, seed=1), random(130, seed=2)
    together, alone = rms_norm(x, weight, 1e-6), rms_norm(x[3:4], weight, 1e-6)
    assert torch.equal(together[3:4], alone)
    normed, added = add_rms_norm(x, stream, weight, 1e-6)
    one_normed, one_added = add_rms_norm(x[3:4], stream[3:4], weight, 1e-6)
    assert torch.equal(normed[3:4], one_normed)
    assert torch.equal(added[3:4], one_added)


def test_no_rows_give_no_rows() -> None:
    assert rms_norm(random(0, 8), random(8), 1e-6).shape == (0, 8)


def test_rows_with_gaps_between_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="side by side"):
        rms_norm(random(8, 4).T, random(8), 1e-6)


@pytest.mark.gpu
@pytest.mark.parametrize("width", [896, 1536, 4096, 16384])
@pytest.mark.parametrize("rows", [1, 8, 2048])
def test_rows_of_real_models(rows: int, width: int) -> None:
    dtype = torch.bfloat16
    x, stream = random(rows, width, dtype=dtype), random(rows, width, dtype=dtype, seed=1)
    weight = 1 + random(width, seed=2)
    normed, added = add_rms_norm(x, stream, weight, 1e-5)
    assert torch.equal(added, stream + x)
    assert_close(normed, normed_by_hand(added, weight, 1e-5), dtype)
    last = slice(rows - 1, rows)
    assert torch.equal(normed[last], add_rms_norm(x[last], stream[last], weight, 1e-5)[0])
