"""compressed-tensors: what its own library packs is expanded as that library does."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")
library = pytest.importorskip("compressed_tensors")

from compressed_tensors.compressors import BaseCompressor  # noqa: E402
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme  # noqa: E402
from torch import Tensor  # noqa: E402

from inference.errors import ModelUnavailable  # noqa: E402
from inference.quantised.compressed import find  # noqa: E402
from tests.unit.inference.quantised.tables import expand, in_few_bits, method, table  # noqa: E402

ROWS, COLUMNS = 48, 96


def packed(form: str, scale: Tensor, zero: Tensor | None = None, **weights: Any) -> tuple[Any, Any]:
    """Return what the library packs of random numbers, and what it makes of that again."""
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    torch.manual_seed(3)
    state = {"weight": torch.randn(ROWS, COLUMNS, dtype=scale.dtype), "weight_scale": scale}
    if zero is not None:
        state["weight_zero_point"] = zero
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(state, scheme)
    return stored, compressor.decompress(stored, scheme)["weight"]


def given(form: str, **weights: Any) -> Any:
    return method("compressed-tensors", format=form, config_groups={"group_0": {"weights": weights}})


@pytest.mark.parametrize("bits", [3, 4, 8])
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("size", [32, None])
def test_words_are_unpacked_as_the_library_does(bits: int, symmetric: bool, size: int | None) -> None:
    count = COLUMNS // size if size else 1
    scale = torch.rand(ROWS, count) * 0.2 + 0.1
    zero = None
    if not symmetric:
        zero = torch.randint(-(2 ** (bits - 1)), 2 ** (bits - 1), (ROWS, count), dtype=torch.int8)
    weights = {
        "num_bits": bits,
        "type": "int",
        "symmetric": symmetric,
        "strategy": "group" if size else "channel",
        "group_size": size,
    }
    stored, expected = packed("pack-quantized", scale, zero, **weights)
    tensors = {f"x.{name}": each for name, each in stored.items()}
    found = find(table(tensors), given("pack-quantized", **weights))
    torch.testing.assert_close(expand(found, tensors), expected, rtol=1e-6, atol=1e-7)
    narrow = in_few_bits(found, tensors)
    assert (narrow is not None) == (bits == 4 or (bits == 8 and symmetric))
    if narrow is not None:
        assert found.weights["x.weight"].bits == bits
        torch.testing.assert_close(narrow, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("bits", [4, 8])
def test_one_scale_for_all_may_be_a_number_alone(bits: int) -> None:
    weights = {"num_bits": bits, "type": "int", "symmetric": True, "strategy": "channel"}
    stored, expected = packed("pack-quantized", torch.full((ROWS, 1), 0.3), **weights)
    tensors = {f"x.{name}": each for name, each in stored.items()}
    tensors["x.weight_scale"] = torch.tensor(0.3)
    found = find(table(tensors), given("pack-quantized", **weights))
    for each in (expand(found, tensors), in_few_bits(found, tensors)):
        torch.testing.assert_close(each, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("form", "shape", "weights"),
    [
        ("int-quantized", (ROWS, 1), {"num_bits": 8, "type": "int", "strategy": "channel"}),
        ("int-quantized", (1,), {"num_bits": 8, "type": "int", "strategy": "tensor"}),
        ("float-quantized", (ROWS, 1), {"num_bits": 8, "type": "float", "strategy": "channel"}),
        ("float-quantized", (1,), {"num_bits": 8, "type": "float", "strategy": "tensor"}),
        (
            "float-quantized",
            (2, 3),
            {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [32, 32]},
        ),
    ],
)
def test_8_bits_are_as_the_library_has_them(
    form: str, shape: tuple[int, ...], weights: dict[str, Any]
) -> None:
    rows = 64 if "block_structure" in weights else ROWS
    scale = torch.rand(shape) * 0.1 + 0.05
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**weights))
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress({"weight": torch.randn(rows, COLUMNS), "weight_scale": scale}, scheme)
    tensors = {f"x.{name}": each for name, each in stored.items()}
    found = find(table(tensors), given(form, **weights))
    expected = compressor.decompress(stored, scheme)["weight"]
    torch.testing.assert_close(expand(found, tensors), expected, rtol=1e-6, atol=1e-7)
    narrow = in_few_bits(found, tensors)
    if "x.weight_zero_point" in tensors:
        assert narrow is None
    else:
        torch.testing.assert_close(narrow, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("form", ["nvfp4-pack-quantized", "mxfp4-pack-quantized"])
def test_4_bits_in_floating_point_are_as_the_library_has_them(form: str) -> None:
    size = 16 if form.startswith("nv") else 32
    weights = {
        "num_bits": 4,
        "type": "float",
        "strategy": "tensor_group" if size == 16 else "group",
        "group_size": size,
    }
    scale_dtype = torch.float8_e4m3fn if size == 16 else torch.uint8
    scheme = QuantizationScheme(
        targets=["Linear"], weights=QuantizationArgs(**weights, symmetric=True, scale_dtype=scale_dtype)
    )
    exponents = torch.randint(-3, 2, (ROWS, COLUMNS // size)).float()
    state = {"weight": torch.randn(ROWS, COLUMNS), "weight_scale": exponents.exp2()}
    if size == 16:
        state["weight_global_scale"] = torch.tensor([2.0])
    compressor = BaseCompressor.get_value_from_registry(form)
    stored = compressor.compress(state, scheme)
    tensors = {f"x.{name}": each for name, each in stored.items()}
    found = find(table(tensors), given(form, **weights))
    expected = compressor.decompress(stored, scheme)["weight"].float()
    torch.testing.assert_close(expand(found, tensors), expected, rtol=1e-2, atol=1e-3)


def test_groups_of_inputs_that_are_not_side_by_side() -> None:
    weights = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    scale = torch.rand(ROWS, 3) * 0.2 + 0.1
    stored, _ = packed("pack-quantized", scale, **weights)
    order = torch.randperm(COLUMNS) // 32
    tensors = {f"x.{name}": each for name, each in stored.items()}
    plain = expand(find(table(tensors), given("pack-quantized", **weights)), tensors)
    tensors["x.weight_g_idx"] = order.int()
    found = expand(find(table(tensors), given("pack-quantized", **weights)), tensors)
    expected = plain / scale[:, torch.arange(COLUMNS) // 32] * scale[:, order]
    torch.testing.assert_close(found, expected)
    tensors["x.weight_g_idx"] = torch.full((COLUMNS,), -1, dtype=torch.int32)
    assert torch.equal(expand(find(table(tensors), given("pack-quantized", **weights)), tensors), plain)
    tensors["x.weight_g_idx"] = torch.full((COLUMNS,), 3, dtype=torch.int32)
    with pytest.raises(ModelUnavailable, match="groups that aren't there in the `weight_g_idx`"):
        expand(find(table(tensors), given("pack-quantized", **weights)), tensors)


WORDS = {
    "x.weight_packed": torch.zeros(8, 8, dtype=torch.int32),
    "x.weight_scale": torch.ones(8, 2),
    "x.weight_shape": torch.tensor([8, 64]),
}
IN_4_BITS = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}


@pytest.mark.parametrize(
    ("changes", "weights", "message"),
    [
        ({"x.weight_shape": torch.tensor([8, 10**12])}, IN_4_BITS, "have 8 words in `x.weight_packed` for"),
        ({"x.weight_shape": torch.tensor([-8, 64])}, IN_4_BITS, "have 8 words in `x.weight_packed` for"),
        ({"x.weight_shape": torch.tensor([8.0, 64.0])}, IN_4_BITS, "have `x.weight_shape` in F32 and 2"),
        ({"x.weight_shape": None}, IN_4_BITS, "lack `x.weight_shape`"),
        ({"x.weight_scale": None}, IN_4_BITS, "lack `x.weight_scale`"),
        ({"x.weight_scale": torch.ones(7, 2)}, IN_4_BITS, "scales of another shape in `x.weight_scale`"),
        ({"x.weight_scale": torch.ones(8, 3)}, IN_4_BITS, "have 3 groups in `x.weight_scale` for 64 inputs"),
        ({"x.weight_zero_point": torch.zeros(1, 9).int()}, IN_4_BITS, "have `x.weight_zero_point` in I32"),
        ({"x.weight_g_idx": torch.zeros(9).int()}, IN_4_BITS, "have `x.weight_g_idx` in I32 and 9"),
        ({}, IN_4_BITS | {"group_size": 0}, "have 2 groups in `x.weight_scale`"),
        ({}, {"num_bits": 0}, "have 8 words in `x.weight_packed` for 64 inputs"),
    ],
)
def test_what_does_not_fit_is_refused(changes: dict[str, Any], weights: dict[str, Any], message: str) -> None:
    tensors = {name: each for name, each in (WORDS | changes).items() if each is not None}
    with pytest.raises(ModelUnavailable, match=message):
        find(table(tensors), given("pack-quantized", **weights))


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"format": "marlin-24"}, "its form 'marlin-24' can't be read: give the model that it was made of"),
        ({"config_groups": {"g": {"format": "mxfp6-pack-quantized"}}}, "its form 'mxfp6-pack-quantized'"),
        ({"sparsity_config": {"format": "sparse-24-bitmask"}}, "its sparse form can't be read"),
        ({"transform_config": {"config_groups": {}, "x": 1}}, "its `transform_config` does to inputs"),
    ],
)
def test_forms_that_cannot_be_read_are_named(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelUnavailable, match=message):
        find(table(WORDS), method("compressed-tensors", **settings))
