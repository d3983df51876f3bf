"""Triton's gates of experts give what torch's do."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from torch import dtype as Dtype  # noqa: E402

from inference.gpu.ops import torch_ops, triton_ops  # noqa: E402
from inference.kernels.gating import Gating  # noqa: E402
from tests.unit.inference.gpu.device_models import DEVICE  # noqa: E402


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "gate",
    [
        Gating(),
        Gating(activation="gelu_tanh"),
        Gating(activation="gelu", limit=3.0),
        Gating(alternating=True),
        Gating(alternating=True, limit=7.0, factor=1.702, offset=1.0),
    ],
    ids=str,
)
def test_tritons_gate_is_torchs(gate: Gating, dtype: Dtype) -> None:
    pytest.importorskip("triton")
    x = (torch.randn(5, 2600, generator=torch.Generator().manual_seed(1)) * 6).to(DEVICE, dtype)
    x[1, 10], x[2, 100] = torch.nan, torch.inf
    found, expected = (ops.gated_by(x, gate) for ops in (triton_ops(), torch_ops()))
    near = 1e-5 if dtype == torch.float32 else torch.finfo(dtype).eps
    torch.testing.assert_close(found, expected, rtol=near, atol=near, equal_nan=True)
    wide = torch.stack([x, x], 1).flatten(0, 1)[::2]
    assert torch.equal(triton_ops().gated_by(wide, gate).nan_to_num(), found.nan_to_num())
