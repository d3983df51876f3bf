"""MLPs of a model's own code: their gate comes with their linears, if that is what they are."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from inference.gpu.linears import Multiplier, SwappedLinear, device_linear  # noqa: E402
from inference.gpu.mlps import SwappedMlp, swap_mlps  # noqa: E402
from inference.gpu.swaps import put_modules_back  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.models.fuse import merge_linears  # noqa: E402
from inference.models.linears import Packed, pack_linears  # noqa: E402
from tests.unit.inference.gpu.device_models import DEVICE, device_ops, device_toy  # noqa: E402


class Mlp(nn.Module):
    def __init__(self, activation: nn.Module, times: float = 1.0) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(32, 48, bias=False) for _ in range(2))
        self.down = nn.Linear(48, 32, bias=False)
        self.activation = activation
        self.times = times

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.down(self.activation(self.gate(x)) * self.up(x) * self.times)
        return result


class Model(nn.Module):
    def __init__(self, mlp: nn.Module) -> None:
        super().__init__()
        self.mlp = mlp

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self.mlp(x)
        return result


def prepared(mlp: nn.Module) -> tuple[Model, Tensor]:
    """Return a model with merged and swapped linears, and something to give it."""
    torch.manual_seed(0)
    model = Model(mlp).to(DEVICE)
    given = torch.randn(1, 5, 32, device=DEVICE)
    merge_linears(model, lambda: model(given))
    multiply = Multiplier(device_ops())

    def swapped(weight: Tensor, bias: Tensor | None, codes: object = None, /) -> Packed:
        return SwappedLinear(device_linear(multiply, weight.dtype, weight, bias))

    pack_linears(model, swapped)
    return model, given


@pytest.mark.parametrize(
    ("activation", "name"),
    [(nn.SiLU(), "silu"), (nn.GELU(), "gelu"), (nn.GELU(approximate="tanh"), "gelu_tanh")],
)
def test_activation_is_the_one_by_which_it_gives_its_own_numbers(activation: nn.Module, name: str) -> None:
    model, given = prepared(Mlp(activation))
    expected = model(given)
    places = swap_mlps(model)
    assert isinstance(model.mlp, SwappedMlp)
    assert model.mlp.activation == name
    assert float((model(given) - expected).abs().max()) < 1e-5
    put_modules_back(places)
    assert isinstance(model.mlp, Mlp)
    assert torch.equal(model(given), expected)


class Limited(nn.SiLU):
    """Differs only where numbers are great."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.clamp(max=7.0))


@pytest.mark.parametrize(
    "mlp", [Mlp(nn.ReLU()), Mlp(nn.SiLU(), times=0.7), Mlp(Limited())], ids=["relu", "times", "limited"]
)
def test_one_that_computes_something_else_stays(mlp: Mlp) -> None:
    model, _ = prepared(mlp)
    assert swap_mlps(model) == []
    assert isinstance(model.mlp, Mlp)


@pytest.mark.parametrize(("fuse", "count"), [(True, 3), (False, 0)])
def test_those_of_models_whose_layers_are_not_fused_are_swapped(fuse: bool, count: int) -> None:
    model = device_toy("cohere")
    bring_up(model, Options(library=None, ops=device_ops(), max_total_tokens=64, fuse=fuse))
    assert sum(isinstance(module, SwappedMlp) for module in model.modules()) == count
