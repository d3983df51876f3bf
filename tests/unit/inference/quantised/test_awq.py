"""AWQ: what the format defines is tested on whole models (`tests/engine/test_quantised.py`)."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from inference.errors import ModelUnavailable  # noqa: E402
from inference.quantised.awq import find  # noqa: E402
from tests.unit.inference.quantised.tables import expand, method, table  # noqa: E402

INPUTS, OUTPUTS, SIZE = 64, 32, 16
TENSORS = {
    "x.qweight": torch.zeros(INPUTS, OUTPUTS // 8, dtype=torch.int32),
    "x.qzeros": torch.zeros(INPUTS // SIZE, OUTPUTS // 8, dtype=torch.int32),
    "x.scales": torch.ones(INPUTS // SIZE, OUTPUTS, dtype=torch.float16),
}
SETTINGS = {"w_bit": 4, "q_group_size": SIZE}  # as they are called in files of old


def test_outputs_of_even_numbers_come_first_in_a_word() -> None:
    word = int("".join(str(each) for each in reversed([0, 2, 4, 6, 1, 3, 5, 7])), 16)
    tensors = TENSORS | {"x.qweight": torch.full((INPUTS, OUTPUTS // 8), word, dtype=torch.int64).int()}
    found = expand(find(table(tensors), method("awq", **SETTINGS)), tensors)
    assert found[:, 0].tolist() == [*range(8)] * 4


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"x.scales": None}, {}, "lack `x.scales`"),
        ({"x.qzeros": None}, {}, "lack `x.qzeros`"),
        ({"x.qweight": None}, {}, "lack `x.qweight`"),
        ({"x.scales": torch.ones(4, 31).half()}, {}, "have `x.scales` in F16 and 4x31"),
        ({"x.qzeros": torch.zeros(4, 5).int()}, {}, "have `x.qzeros` in I32 and 4x5"),
        ({"x.qweight": torch.zeros(64, 4, 1).int()}, {}, "have `x.qweight` in I32 and 64x4x1"),
        ({}, {"q_group_size": 32}, "have 4 groups in `x.scales`, for 64 inputs in groups of 32"),
        ({}, {"q_group_size": 0}, "in groups of 0"),
        (
            {"mlp.act.scales": torch.ones(64)},
            {},
            r"its scaled activations \(`mlp.act.scales`\) can't be read",
        ),
        ({}, {"w_bit": 8}, "other than 4 bits can't be read"),
        ({}, {"version": "gemv_fast"}, "its form 'gemv_fast' of 'autoawq' can't be read: give the model"),
        ({}, {"backend": "llm-awq"}, "its form 'gemm' of 'llm-awq' can't be read"),
        ({}, {"version": "gemv"}, "have `x.qzeros` in I32 and 4x4"),
        (
            {"x.qzeros": torch.zeros(64, 1).int(), "x.scales": torch.ones(64, 1).half()},
            {"version": "gemv"},
            "have too few groups",
        ),
    ],
)
def test_what_does_not_fit_is_refused(changes: Any, settings: Any, message: str) -> None:
    tensors = {name: each for name, each in (TENSORS | changes).items() if each is not None}
    with pytest.raises(ModelUnavailable, match=message):
        find(table(tensors), method("awq", **SETTINGS | settings))
