"""An MLP that clips what it computes is seen to, however great a number it begins at."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch import dtype as Dtype  # noqa: E402
from torch.nn.functional import silu  # noqa: E402

from inference.models.joined import Linears  # noqa: E402
from inference.models.mlps import read_mlp  # noqa: E402
from inference.models.other_shape import OtherShape  # noqa: E402
from inference.models.uncut import check_uncut  # noqa: E402
from tests.unit.inference.toy_models import toy  # noqa: E402

HIDDEN, INNER = 8, 12
Between = Callable[[Tensor, Tensor], Tensor]


class Mlp(nn.Module):
    """Like Llama's, with anything between its linears."""

    def __init__(self, between: Between) -> None:
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(HIDDEN, INNER), nn.Linear(HIDDEN, INNER)
        self.down_proj = nn.Linear(INNER, HIDDEN)
        self.act_fn = nn.SiLU()
        self.between = between

    def forward(self, x: Tensor) -> Tensor:
        given: Tensor = self.down_proj(self.between(self.gate_proj(x), self.up_proj(x)))
        return given


@pytest.mark.parametrize("limit", [7.0, 16.0, 100.0])
@pytest.mark.parametrize("side", ["gates", "activated", "ups"])
def test_what_is_clipped_is_refused(side: str, limit: float) -> None:
    between: dict[str, Between] = {
        "gates": lambda gate, up: silu(gate.clamp(max=limit)) * up,
        "activated": lambda gate, up: silu(gate).clamp(max=limit) * up,
        "ups": lambda gate, up: silu(gate) * up.clamp(-limit, limit),
    }
    with pytest.raises(OtherShape, match="is clipped, or multiplied"):
        read_mlp(Mlp(between[side]))


def test_what_is_multiplied_is_refused() -> None:
    with pytest.raises(OtherShape, match="is clipped, or multiplied"):
        read_mlp(Mlp(lambda gate, up: silu(gate) * up * 2))


def test_the_mlp_is_as_it_was() -> None:
    mlp = Mlp(lambda gate, up: silu(gate) * up)
    before, x = dict(mlp.named_modules()), torch.randn(3, HIDDEN)
    expected = mlp(x)
    assert read_mlp(mlp).activation == "silu"
    assert dict(mlp.named_modules()) == before
    assert torch.equal(mlp(x), expected)


def test_code_that_wants_more_than_its_input_is_left_alone() -> None:
    def between(gate: Tensor, up: Tensor) -> Tensor:
        raise TypeError("a mask is wanted")

    mlp = Mlp(between)
    modules = list(mlp.children())
    assert read_mlp(mlp).activation == "silu"
    assert list(mlp.children()) == modules


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    ("family", "names"), [("llama", ("gate_proj", "up_proj")), ("phi3", ("gate_up_proj",))]
)
def test_what_is_all_passed_on_is_taken(family: str, names: tuple[str, ...], dtype: Dtype) -> None:
    mlp = toy(family).to(dtype).model.layers[0].mlp
    check_uncut(mlp, Linears(mlp, names), Linears(mlp, ("down_proj",)), silu)
    with pytest.raises(OtherShape):
        check_uncut(mlp, Linears(mlp, names), Linears(mlp, ("down_proj",)), torch.square)
