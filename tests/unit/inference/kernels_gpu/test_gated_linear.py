from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu, silu

from inference.kernels.gpu.gated_linear import gated_linear, gated_tiles
from inference.kernels.gpu.linear import MOST_ROWS, processors
from tests.unit.inference.triton_device import DEVICE

TOLERANCES = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # relative, of norms
ACTIVATIONS = ["silu", "gelu_tanh", "gelu"]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def by_torch(x: Tensor, weight: Tensor, bias: Tensor | None, activation: str) -> Tensor:
    gate, up = (x.double() @ weight.double().T + (0 if bias is None else bias.double())).chunk(2, 1)
    if activation == "silu":
        return silu(gate) * up
    return gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up


def assert_close(found: Tensor, expected: Tensor) -> None:
    assert (found.double() - expected).norm() <= TOLERANCES[found.dtype] * (expected.norm() + 1)


@settings(deadline=None, max_examples=30)
@given(
    st.integers(1, MOST_ROWS),
    st.integers(1, 50),
    st.integers(1, 600),
    st.sampled_from(list(TOLERANCES)),
    st.sampled_from(ACTIVATIONS),
    st.booleans(),
)
def test_it_is_the_linear_and_then_the_gate(
    rows: int, outputs: int, inner: int, dtype: torch.dtype, activation: str, biased: bool
) -> None:
    x, weight = random(rows, inner, dtype=dtype), random(2 * outputs, inner, dtype=dtype, seed=1)
    weight /= inner**0.5
    bias = random(2 * outputs, dtype=dtype, seed=2) if biased else None
    expected = by_torch(x, weight, bias, activation)
    for tile in gated_tiles(rows, outputs, inner, dtype, 4):
        found = gated_linear(x, weight, bias, activation, tile=tile)
        assert found.dtype == dtype
        assert_close(found, expected)


def test_a_row_has_the_same_bits_whatever_is_beside_it() -> None:
    x, weight = random(MOST_ROWS, 300), random(60, 300, seed=1)
    everything = gated_linear(x, weight, None, "silu")
    for rows in (2, 7):
        assert torch.equal(gated_linear(x[:rows], weight, None, "silu"), everything[:rows])


def test_the_result_goes_where_it_is_wanted() -> None:
    x, weight = random(3, 64), random(40, 64, seed=1)
    wide = torch.full((3, 50), torch.nan, device=DEVICE)
    gated_linear(x, weight, None, "silu", out=wide[:, 10:30])
    assert torch.equal(wide[:, 10:30], gated_linear(x, weight, None, "silu"))
    assert wide[:, :10].isnan().all()
    assert wide[:, 30:].isnan().all()


def test_what_it_cannot_do_is_refused() -> None:
    weight = random(8, 16)
    with pytest.raises(ValueError, match="16 rows, got 17"):
        gated_linear(random(17, 16), weight, None, "silu")
    with pytest.raises(ValueError, match="side by side"):
        gated_linear(random(16, 2).T, weight, None, "silu")
    with pytest.raises(KeyError, match="relu"):
        gated_linear(random(2, 16), weight, None, "relu")
    assert gated_linear(random(0, 16), weight, None, "silu").shape == (0, 4)


@pytest.mark.gpu
@pytest.mark.parametrize("rows", [1, 2, 8, 16])
@pytest.mark.parametrize(("outputs", "inner"), [(14336, 4096), (4864, 896), (8192, 2048)])
def test_weights_of_real_models(rows: int, outputs: int, inner: int) -> None:
    dtype = torch.bfloat16
    x, weight = random(rows, inner, dtype=dtype), random(2 * outputs, inner, dtype=dtype, seed=1) / inner**0.5
    for tile in gated_tiles(rows, outputs, inner, dtype, processors(DEVICE)):
        assert_close(gated_linear(x, weight, None, "silu", tile=tile), by_torch(x, weight, None, "silu"))
