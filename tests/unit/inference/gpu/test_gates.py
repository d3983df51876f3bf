"""Gates of experts are found by what they compute, within and beyond their limits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch import dtype as Dtype  # noqa: E402
from torch.nn.functional import gelu, relu, silu  # noqa: E402

from inference.gpu.gates import Gate, find_gate  # noqa: E402
from inference.gpu.ops import torch_ops, triton_ops  # noqa: E402
from tests.unit.inference.gpu.device_models import DEVICE  # noqa: E402

Apply = Callable[[Tensor], Tensor]


class Own(nn.Module):
    def __init__(self, **numbers: float) -> None:
        super().__init__()
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
    ("apply", "numbers", "gate"),
    [
        (halves(silu), {"limit": 7.0}, Gate()),
        (halves(gelu), {}, Gate("gelu")),
        (halves(silu, 12.0), {"count": 8, "bound": 12.0}, Gate(limit=12.0)),
        (neighbours, {"b": 7.0, "a": 1.702}, Gate(interleaved=True, limit=7.0, slope=1.702, shift=1.0)),
        (neighbours, {"b": 7.0}, None),  # a number of it is nowhere
        (halves(silu, 12.0), {}, None),
        (halves(relu), {}, None),
        (lambda x: x, {}, None),
    ],
)
def test_a_gate_is_what_gives_the_same_with_the_modules_own_numbers(
    apply: Apply, numbers: dict[str, float], gate: Gate | None
) -> None:
    assert find_gate(Own(**numbers), apply) == gate


def test_what_cannot_be_tried_is_left_alone() -> None:
    def fails(x: Tensor) -> Tensor:
        raise ValueError("it wants something else")

    assert find_gate(Own(), fails) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "gate",
    [
        Gate(),
        Gate("gelu_tanh"),
        Gate("gelu", limit=3.0),
        Gate(interleaved=True),
        Gate(interleaved=True, limit=7.0, slope=1.702, shift=1.0),
    ],
    ids=str,
)
def test_tritons_gate_is_torchs(gate: Gate, dtype: Dtype) -> None:
    pytest.importorskip("triton")
    x = (torch.randn(5, 2600, generator=torch.Generator().manual_seed(1)) * 6).to(DEVICE, dtype)
    x[1, 10], x[2, 100] = torch.nan, torch.inf
    found, expected = (ops.gated_by(x, gate) for ops in (triton_ops(), torch_ops()))
    near = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=near, atol=near, equal_nan=True)
    wide = torch.stack([x, x], 1).flatten(0, 1)[::2]
    assert torch.equal(triton_ops().gated_by(wide, gate).nan_to_num(), found.nan_to_num())
