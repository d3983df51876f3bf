from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn.functional import gelu, silu

from inference.kernels.gpu.activation import gated
from tests.unit.inference.triton_device import DEVICE

TOLERANCES = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
ACTIVATIONS = ["silu", "gelu_tanh", "gelu"]


def by_torch(gate_up: Tensor, activation: str) -> Tensor:
    gate, up = gate_up.double().chunk(2, dim=1)
    if activation == "silu":
        return silu(gate) * up
    return gelu(gate, approximate="tanh" if activation == "gelu_tanh" else "none") * up


def assert_close(found: Tensor, expected: Tensor) -> None:
    error = (found.double() - expected).abs() / (expected.abs() + 1)
    assert error.max() <= TOLERANCES[found.dtype]


def random(rows: int, inner: int, dtype: torch.dtype) -> Tensor:
    generator = torch.Generator().manual_seed(inner)
    return (torch.randn(rows, 2 * inner, generator=generator) * 4).to(DEVICE, dtype)


@settings(deadline=None)
@given(st.integers(1, 3), st.integers(1, 90), st.sampled_from(list(TOLERANCES)), st.sampled_from(ACTIVATIONS))
def test_the_gate_is_activated_and_multiplied(
    rows: int, inner: int, dtype: torch.dtype, activation: str
) -> None:
    gate_up = random(rows, inner, dtype)
    found = gated(gate_up, activation)
    assert found.shape == (rows, inner)
    assert found.dtype == dtype
    assert_close(found, by_torch(gate_up, activation))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_more_numbers_than_one_program_takes(activation: str) -> None:
    gate_up = random(2, 2500, torch.float32)
    assert_close(gated(gate_up, activation), by_torch(gate_up, activation))


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_extreme_gates_give_no_nan(activation: str) -> None:
    gates = torch.tensor([[-1e4, -100.0, -0.0, 0.0, 100.0, 1e4]])
    gate_up = torch.cat([gates, torch.ones_like(gates)], 1).to(DEVICE)
    assert_close(gated(gate_up, activation), by_torch(gate_up, activation))


def test_a_row_has_the_same_bits_alone_and_among_others() -> None:
    gate_up = random(4, 70, torch.float32)
    assert torch.equal(gated(gate_up, "silu")[2:3], gated(gate_up[2:3], "silu"))


def test_the_result_goes_where_it_is_wanted() -> None:
    gate_up = random(2, 8, torch.float32)
    into = torch.full((2, 8), torch.nan, device=DEVICE)
    assert gated(gate_up, "gelu", out=into) is into
    assert torch.equal(into, gated(gate_up, "gelu"))


def test_another_activation_is_refused() -> None:
    with pytest.raises(KeyError, match="relu"):
        gated(random(1, 4, torch.float32), "relu")


@pytest.mark.gpu
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize(("rows", "inner"), [(1, 4864), (256, 14336), (2048, 8192)])
def test_gates_of_real_models(rows: int, inner: int, activation: str) -> None:
    gate_up = random(rows, inner, torch.bfloat16)
    assert_close(gated(gate_up, activation), by_torch(gate_up, activation))
