"""MXFP4: experts are what transformers makes of them where it expands them itself."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers.integrations.mxfp4 import convert_moe_packed_tensors  # noqa: E402

from inference.errors import ModelUnavailable  # noqa: E402
from inference.quantised.mxfp4 import find  # noqa: E402
from tests.unit.inference.quantised.tables import expand, method, table  # noqa: E402

torch.manual_seed(4)
TENSORS = {
    "x.down_proj_blocks": torch.randint(0, 256, (3, 64, 2, 16), dtype=torch.uint8),
    "x.down_proj_scales": torch.randint(118, 130, (3, 64, 2), dtype=torch.uint8),
}


def test_experts_are_those_that_transformers_makes() -> None:
    found = expand(find(table(TENSORS), method("mxfp4")), TENSORS, "x.down_proj")
    expected = convert_moe_packed_tensors(*TENSORS.values(), dtype=torch.float32)
    assert torch.equal(found, expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"x.down_proj_scales": None}, "lack `x.down_proj_scales`"),
        ({"x.down_proj_scales": torch.zeros(3, 64, 3).byte()}, "have `x.down_proj_scales` in U8 and 3x64x3"),
        ({"x.down_proj_blocks": torch.zeros(3, 64, 2, 8).byte()}, "`x.down_proj_blocks` in U8 and 3x64x2x8"),
        ({"x.down_proj_blocks": torch.zeros(3, 64, 32).byte()}, "`x.down_proj_blocks` in U8 and 3x64x32"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], message: str) -> None:
    tensors = {name: each for name, each in (TENSORS | changes).items() if each is not None}
    with pytest.raises(ModelUnavailable, match=message):
        find(table(tensors), method("mxfp4"))
