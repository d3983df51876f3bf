"""How a mixture's experts are gated is found by what they compute."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch.nn.functional import gelu, relu, silu  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.kernels.gating import Gating  # noqa: E402
from inference.models.gates import find_gating  # noqa: E402
from inference.models.weights import expert_weights  # noqa: E402

GPT_OSS = Gating(factor=1.702, limit=7.0, offset=1.0, alternating=True)
Apply = Callable[[Tensor], Tensor]


class Experts(nn.Module):
    """What is asked of a mixture's experts."""

    def __init__(self, apply: Apply, numbers: dict[str, float], *, has_gate: bool = True) -> None:
        super().__init__()
        self.has_gate, self.act_fn, self._apply_gate = has_gate, apply, apply
        for name, number in numbers.items():
            setattr(self, name, number)


def halves(activate: Apply, limit: float | None = None) -> Apply:
    def apply(x: Tensor) -> Tensor:
        gate, up = x.chunk(2, -1)
        if limit is not None:
            gate, up = gate.clamp(max=limit), up.clamp(-limit, limit)
        return activate(gate) * up

    return apply


def neighbours(x: Tensor) -> Tensor:
    gate, up = x[..., ::2].clamp(max=7.0), x[..., 1::2].clamp(-7.0, 7.0)
    return (up + 1) * gate * torch.sigmoid(gate * 1.702)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("qwen3_moe", Gating()),
        ("mixtral", Gating()),
        ("gpt_oss", GPT_OSS),
        ("nemotron_h", Gating(gates=False, activation="squared_relu")),
    ],
)
def test_families_are_known(family: str, expected: Gating) -> None:
    own = next(each for each in toy_model(family).modules() if expert_weights(each))
    assert find_gating(own) == expected


@pytest.mark.parametrize(
    ("apply", "numbers", "expected"),
    [
        (halves(silu), {"limit": 7.0}, Gating()),
        (halves(gelu), {}, Gating(activation="gelu")),
        (halves(silu, 12.0), {"count": 8, "bound": 12.0}, Gating(limit=12.0)),
        (neighbours, {"b": 7.0, "a": 1.702}, GPT_OSS),
        (neighbours, {"b": 7.0}, None),  # a number of it is nowhere
        (halves(silu, 12.0), {}, None),
        (halves(relu), {}, None),
        (lambda x: x, {}, None),
    ],
)
def test_a_gate_is_what_gives_the_same_with_the_modules_own_numbers(
    apply: Apply, numbers: dict[str, float], expected: Gating | None
) -> None:
    assert find_gating(Experts(apply, numbers)) == expected


@pytest.mark.parametrize("activation", ["silu", "gelu", "gelu_tanh", "squared_relu"])
@pytest.mark.parametrize("gates", [False, True])
def test_activations_are_told_apart(gates: bool, activation: str) -> None:
    form = Gating(gates=gates, activation=activation)
    assert find_gating(Experts(form, {}, has_gate=gates)) == form


@pytest.mark.parametrize("alternating", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("factor", "limit"), [(1.0, math.inf), (1.702, 7.0), (1.0, 7.0), (1.702, math.inf)])
def test_forms_are_told_apart(factor: float, limit: float, offset: float, alternating: bool) -> None:
    form = Gating(factor=factor, limit=limit, offset=offset, alternating=alternating)
    assert find_gating(Experts(form, {"alpha": 1.702, "limit": 7.0})) == form


def test_what_cannot_be_tried_is_left_alone() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("it wants something else")

    assert find_gating(Experts(fails, {})) is None
