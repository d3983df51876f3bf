from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from inference.kernels.gpu.invariant import block_of, invariant_heads, invariant_linear
from tests.unit.inference.triton_device import DEVICE

TOLERANCES = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # relative, of norms
DTYPES = st.sampled_from(list(TOLERANCES))


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def assert_close(found: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None) -> None:
    x, weight, bias = (
        x.double(),
        weight.double(),
        weight.new_zeros(1).double() if bias is None else bias.double(),
    )
    expected, size = x @ weight.T + bias, x.abs() @ weight.abs().T + bias.abs()  # size: if nothing cancelled
    error = (found.double() - expected).norm()
    assert error <= TOLERANCES[found.dtype] * size.norm()


@settings(deadline=None, max_examples=30)
@given(st.integers(1, 200), st.integers(1, 200), st.integers(1, 200), DTYPES, st.booleans())
def test_rows_are_multiplied(rows: int, outputs: int, inner: int, dtype: torch.dtype, biased: bool) -> None:
    x, weight = random(rows, inner, dtype=dtype), random(outputs, inner, dtype=dtype, seed=1)
    bias = random(outputs, dtype=dtype, seed=2) if biased else None
    found = invariant_linear(x, weight, bias)
    assert found.dtype == dtype
    assert_close(found, x, weight, bias)


def test_many_tiles_of_rows_and_of_outputs_are_all_visited() -> None:
    x, weight = random(700, 16), random(110, 16, seed=1)
    into = torch.full((700, 110), torch.nan, device=DEVICE)
    assert_close(invariant_linear(x, weight, None, out=into), x, weight, None)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("inner", [130, 256])
def test_a_row_has_the_same_bits_in_any_batch(dtype: torch.dtype, inner: int) -> None:
    x, weight = random(150, inner, dtype=dtype), random(70, inner, dtype=dtype, seed=1)
    bias = random(70, dtype=dtype, seed=2)
    together = invariant_linear(x, weight, bias)
    for rows in (slice(0, 1), slice(3, 5), slice(60, 77), slice(149, 150)):
        assert torch.equal(invariant_linear(x[rows], weight, bias), together[rows])


@settings(deadline=None, max_examples=15)
@given(st.integers(1, 70), st.integers(1, 5), st.integers(1, 70), st.integers(1, 90), DTYPES, st.booleans())
def test_each_head_has_a_weight_of_its_own(
    rows: int, heads: int, outputs: int, inner: int, dtype: torch.dtype, turned: bool
) -> None:
    x = random(heads, rows, inner, dtype=dtype).transpose(0, 1)
    weight = random(heads, inner, outputs, dtype=dtype, seed=1).transpose(1, 2)
    wider = torch.full((rows, heads, outputs + 3), torch.nan, device=DEVICE, dtype=dtype)
    out = wider[..., :outputs] if turned else None
    found = invariant_heads(x, weight if turned else weight.contiguous(), out=out)
    assert found.shape == (rows, heads, outputs)
    assert wider[..., outputs:].isnan().all()
    for head in range(heads):
        assert_close(found[:, head], x[:, head], weight[head], None)


def test_a_head_has_the_same_bits_in_any_batch() -> None:
    x, weight = random(150, 3, 130, dtype=torch.bfloat16), random(3, 70, 130, dtype=torch.bfloat16, seed=1)
    together = invariant_heads(x, weight)
    for rows in (slice(0, 1), slice(3, 5), slice(60, 77), slice(149, 150)):
        assert torch.equal(invariant_heads(x[rows], weight), together[rows])
    with pytest.raises(ValueError, match="side by side"):
        invariant_heads(x.transpose(1, 2), weight)


def test_the_tile_is_chosen_by_the_weights_alone() -> None:
    for dtype in TOLERANCES:
        for outputs, inner in ((896, 896), (4096, 4096), (28672, 4096), (5, 3)):
            block = block_of(outputs, inner, dtype)
            for size in (block.rows, block.outputs, block.inner):
                assert size >= 16  # what the matrix units take
                assert size & (size - 1) == 0


def test_the_result_goes_where_it_is_wanted() -> None:
    x, weight = random(3, 64), random(20, 64, seed=1)
    wide = torch.full((3, 50), torch.nan, device=DEVICE)
    invariant_linear(x, weight, None, out=wide[:, 10:30])
    assert torch.equal(wide[:, 10:30], invariant_linear(x, weight, None))
    assert wide[:, :10].isnan().all()
    assert wide[:, 30:].isnan().all()


def test_rows_with_gaps_between_numbers_are_refused() -> None:
    with pytest.raises(ValueError, match="side by side"):
        invariant_linear(random(16, 2).T, random(8, 16), None)
    assert invariant_linear(random(0, 16), random(8, 16), None).shape == (0, 8)


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("outputs", "inner"), [(6144, 4096), (28672, 4096), (4096, 14336), (1152, 896), (896, 4864)]
)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_weights_of_real_models(outputs: int, inner: int, dtype: torch.dtype) -> None:
    x, weight = random(1000, inner, dtype=dtype), random(outputs, inner, dtype=dtype, seed=1)
    together = invariant_linear(x, weight, None)
    assert_close(together, x, weight, None)
    for rows in (slice(0, 1), slice(5, 13), slice(100, 356), slice(999, 1000)):
        assert torch.equal(invariant_linear(x[rows], weight, None), together[rows])
