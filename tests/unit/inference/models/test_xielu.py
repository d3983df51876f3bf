"""An activation with learned numbers is found by what it computes."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from transformers.activations import ACT2FN, XIELUActivation  # noqa: E402

from inference.models.layers import OtherShape  # noqa: E402
from inference.models.mlps import ACTIVATIONS, read_mlp  # noqa: E402
from inference.models.xielu import find_xielu  # noqa: E402

X = torch.cat([torch.linspace(-8, 8, 65), torch.tensor([-1000.0, -20.0, 20.0, 1000.0, -1e-7, 1e-7])])


def learned(above: float, below: float) -> XIELUActivation:
    function = XIELUActivation(dtype=torch.float32).requires_grad_(False)
    function.alpha_p.fill_(above)
    function.alpha_n.fill_(below)
    return function


@settings(max_examples=50, deadline=None)
@given(above=st.floats(-6, 6), below=st.floats(-6, 6))
def test_its_numbers_are_those_it_has_learned(above: float, below: float) -> None:
    function = learned(above, below)
    found = find_xielu(function, X)
    assert found is not None
    wanted = nn.functional.softplus(torch.tensor([above, below])) + torch.tensor([0, 0.5])
    assert torch.allclose(torch.tensor(found)[[0, 2]], wanted, rtol=1e-5)
    assert found.linear == pytest.approx(0.5, rel=1e-5)
    assert -2e-6 < found.least < -5e-7
    assert torch.allclose(found(X), function(X), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("name", [*ACTIVATIONS, "tanh", "sigmoid", "laplace", "leaky_relu", "mish"])
def test_other_activations_are_none(name: str) -> None:
    assert find_xielu(ACTIVATIONS[name] if name in ACTIVATIONS else ACT2FN[name], X) is None


class Mlp(nn.Module):
    """One without gates."""

    def __init__(self, act_fn: nn.Module) -> None:
        super().__init__()
        self.up_proj, self.down_proj = nn.Linear(8, 12), nn.Linear(12, 8)
        self.act_fn = act_fn


def test_an_mlp_without_gates_may_have_it() -> None:
    parts = read_mlp(Mlp(learned(0.3, -1.0)))
    assert (parts.activation, parts.inner) == ("xielu", 12)
    assert parts.numbers is not None


def test_what_has_learned_something_else_is_refused() -> None:
    with pytest.raises(OtherShape, match="the activation"):
        read_mlp(Mlp(nn.PReLU().requires_grad_(False)))
