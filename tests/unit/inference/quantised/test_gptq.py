"""GPTQ: what the format defines is tested on whole models (`tests/engine/test_quantised.py`)."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from inference.errors import ModelUnavailable  # noqa: E402
from inference.quantised.gptq import find  # noqa: E402
from tests.unit.inference.quantised.tables import expand, method, table  # noqa: E402

INPUTS, OUTPUTS, SIZE = 64, 32, 16
TENSORS = {
    "x.qweight": torch.zeros(INPUTS // 8, OUTPUTS, dtype=torch.int32),
    "x.qzeros": torch.zeros(INPUTS // SIZE, OUTPUTS // 8, dtype=torch.int32),
    "x.scales": torch.ones(INPUTS // SIZE, OUTPUTS, dtype=torch.float16),
    "x.g_idx": (torch.arange(INPUTS) // SIZE).int(),
}
SETTINGS = {"bits": 4, "group_size": SIZE}


def test_a_stored_zero_point_is_one_less_and_wraps_around() -> None:
    tensors = TENSORS | {"x.qzeros": torch.full_like(TENSORS["x.qzeros"], -1)}  # 15 in each place
    assert expand(find(table(tensors), method("gptq", **SETTINGS)), tensors).eq(0).all()
    assert expand(find(table(TENSORS), method("gptq", **SETTINGS)), TENSORS).eq(-1).all()
    second = SETTINGS | {"checkpoint_format": "gptq_v2"}
    assert expand(find(table(TENSORS), method("gptq", **second)), TENSORS).eq(0).all()


@pytest.mark.parametrize(("bits", "inputs"), [(4, 8), (8, 4)])
def test_inputs_may_fit_in_one_word(bits: int, inputs: int) -> None:
    tensors = {
        "x.qweight": torch.arange(OUTPUTS, dtype=torch.int32)[None],  # of which the lowest bits are the first
        "x.qzeros": torch.full((1, OUTPUTS * bits // 32), {4: 0x77777777, 8: 0x7F7F7F7F}[bits]).int(),
        "x.scales": torch.ones(1, OUTPUTS, dtype=torch.float16),
    }
    found = find(table(tensors), method("gptq", bits=bits, group_size=-1))
    weight, middle = expand(found, tensors), 2 ** (bits - 1)
    assert weight.shape == (OUTPUTS, inputs)
    assert (weight[:, 0] + middle).tolist() == [each % 2**bits for each in range(OUTPUTS)]
    kept = found.weights["x.weight"]
    assert kept.codes is not None
    assert torch.equal(
        kept.codes({role: tensors[name] for role, name in kept.parts.items()}).expand(), weight
    )


def test_more_groups_than_are_named_are_no_fault() -> None:
    half = {"x.g_idx": torch.zeros(INPUTS, dtype=torch.int32)}
    assert expand(find(table(TENSORS | half), method("gptq", **SETTINGS)), TENSORS | half).eq(-1).all()


def test_modules_may_have_bits_of_their_own_where_it_is_said() -> None:
    said = SETTINGS | {"bits": 8}
    with pytest.raises(ModelUnavailable, match=r"have 4 bits in `x.qzeros`, where config.json says 8"):
        find(table(TENSORS), method("gptq", **said))
    found = find(table(TENSORS), method("gptq", **said, dynamic={"x": {"bits": 4}}))
    assert found.weights["x.weight"].shape == (OUTPUTS, INPUTS)


@pytest.mark.parametrize("group", [-1, INPUTS // SIZE, 2**31 - 1])
def test_groups_that_are_not_there_are_refused(group: int) -> None:
    tensors = TENSORS | {"x.g_idx": TENSORS["x.g_idx"].clone()}
    tensors["x.g_idx"][5] = group
    with pytest.raises(ModelUnavailable, match=rf"beside `x.qweight` names group {group} of 4: the file is"):
        expand(find(table(tensors), method("gptq", **SETTINGS)), tensors)


@pytest.mark.parametrize(
    ("changes", "settings", "message"),
    [
        ({"x.scales": None}, {}, "lack `x.scales`"),
        ({"x.qzeros": None}, {}, "lack `x.qzeros`"),
        ({"x.scales": torch.ones(4, 31).half()}, {}, "have `x.scales` in F16 and 4x31, and not in"),
        ({"x.scales": torch.ones(0, 32).half()}, {}, "have `x.scales` in F16 and 0x32"),
        ({"x.qzeros": torch.zeros(4, 9).int()}, {}, "have `x.qzeros` with 9 words for 32 zero points"),
        ({"x.qzeros": torch.zeros(3, 4).int()}, {}, "have `x.qzeros` in I32 and 3x4"),
        ({"x.qweight": torch.zeros(8, 32)}, {}, "have `x.qweight` in F32 and 8x32, and not in I32 and any"),
        ({"x.g_idx": torch.zeros(63).int()}, {}, "have `x.g_idx` in I32 and 63"),
        ({"x.g_idx": torch.zeros(64)}, {}, "have `x.g_idx` in F32"),
        (
            {"x.g_idx": None},
            {"group_size": 128},
            "have 4 groups in `x.scales`, for 64 inputs in groups of 128",
        ),
        ({}, {"group_size": 0}, "in groups of 0"),
        ({}, {"group_size": "128"}, "`group_size` is '128', which must be a whole number"),
        ({}, {"group_size": -2}, "`group_size` is -2, which must be a whole number of at least -1"),
        ({}, {"checkpoint_format": "marlin"}, "its form 'marlin' can't be read: give the model that it was"),
        ({}, {"is_marlin_format": True}, "its form 'marlin' can't be read"),
    ],
)
def test_what_does_not_fit_is_refused(changes: Any, settings: Any, message: str) -> None:
    tensors = {name: each for name, each in (TENSORS | changes).items() if each is not None}
    with pytest.raises(ModelUnavailable, match=message):
        find(table(tensors), method("gptq", **SETTINGS | settings))
