"""How a mixture's experts are gated is found by what they compute."""

from __future__ import annotations

import math

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.kernels.gating import Gating  # noqa: E402
from inference.models.gates import find_gating  # noqa: E402
from inference.models.weights import expert_weights  # noqa: E402

INNER = 24
SILU = Gating(gates=True, activation="silu")


class Experts(nn.Module):
    """What is asked of a mixture's experts; `cut`: at what gates and ups are cut."""

    has_gate = True
    act_fn: Gating

    def __init__(self, form: Gating, factor_is: float = 1.702, cut: float = 7.0) -> None:
        super().__init__()
        self.form, self.alpha, self.limit = form, factor_is, cut

    def _apply_gate(self, found: Tensor) -> Tensor:
        return self.form(found)


@pytest.mark.parametrize(
    ("family", "expected"),
    [
        ("qwen3_moe", SILU),
        ("mixtral", SILU),
        (
            "gpt_oss",
            Gating(gates=True, activation="silu", factor=1.702, limit=7.0, offset=1.0, alternating=True),
        ),
        ("nemotron_h", Gating(gates=False, activation="squared_relu")),
    ],
)
def test_families_are_known(family: str, expected: Gating) -> None:
    own = next(each for each in toy_model(family).modules() if expert_weights(each))
    weights = next(iter(expert_weights(own).values()))
    assert find_gating(own, weights.shape[2 if own.is_transposed else 1]) == expected


@pytest.mark.parametrize("alternating", [False, True])
@pytest.mark.parametrize("offset", [0.0, 1.0])
@pytest.mark.parametrize(("factor", "limit"), [(1.0, math.inf), (1.702, 7.0), (1.0, 7.0), (1.702, math.inf)])
def test_forms_are_told_apart(factor: float, limit: float, offset: float, alternating: bool) -> None:
    form = Gating(
        gates=True, activation="silu", factor=factor, limit=limit, offset=offset, alternating=alternating
    )
    assert find_gating(Experts(form), 2 * INNER) == form


@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh", "squared_relu"])
@pytest.mark.parametrize("gates", [False, True])
def test_activations_are_told_apart(gates: bool, activation: str) -> None:
    form = Gating(gates=gates, activation=activation)
    own = Experts(form)
    own.has_gate, own.act_fn = gates, form
    assert find_gating(own, 2 * INNER) == form


def test_another_form_is_unknown() -> None:
    own = Experts(SILU)
    own.form = lambda found: found.chunk(2, -1)[0].tanh()  # type: ignore[assignment]
    assert find_gating(own, 2 * INNER) is None
