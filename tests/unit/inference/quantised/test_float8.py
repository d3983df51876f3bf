"""FP8: weights are what transformers makes of them where it expands them itself."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from torch import dtype as Kind  # noqa: E402
from transformers.integrations.finegrained_fp8 import Fp8Dequantize  # noqa: E402

from inference.errors import ModelUnavailable  # noqa: E402
from inference.quantised.float8 import find, find_modelopt  # noqa: E402
from tests.unit.inference.quantised.tables import expand, method, table  # noqa: E402

ROWS, COLUMNS = 64, 96


def weight(*shape: int, kind: Kind = torch.float8_e4m3fn) -> Tensor:
    torch.manual_seed(3)
    return torch.randn(shape).to(kind)


def theirs(numbers: Tensor, scale: Tensor) -> Tensor:
    found: Tensor = Fp8Dequantize(None)._dequantize_one(numbers, scale, torch.float32)
    return found


@pytest.mark.parametrize(
    ("name", "scale", "settings"),
    [
        ("fp8", torch.rand(2, 3), {"weight_block_size": [32, 32]}),
        ("fp8", torch.rand(1, 1), {}),
        ("fp8", torch.tensor(0.3), {}),
        ("fp8", torch.rand(ROWS, 1), {}),
        ("fp8", torch.rand(2, 3).bfloat16(), {"weight_block_size": [32, 32]}),
        ("fp8", torch.randint(120, 130, (2, 3), dtype=torch.uint8), {"weight_block_size": [32, 32]}),
        ("mxfp8", torch.randint(120, 130, (ROWS, 3), dtype=torch.uint8), {}),
    ],
)
@pytest.mark.parametrize("kind", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_weights_are_those_that_transformers_makes(
    name: str, scale: Tensor, settings: dict[str, Any], kind: Kind
) -> None:
    tensors = {"x.weight": weight(ROWS, COLUMNS, kind=kind), "x.weight_scale_inv": scale}
    found = expand(find(table(tensors), method(name, **settings)), tensors)
    assert torch.equal(found, theirs(tensors["x.weight"], scale))


def test_experts_in_one_tensor_have_scales_of_their_own() -> None:
    tensors = {"x.gate_up_proj": weight(3, ROWS, COLUMNS), "x.gate_up_proj_scale_inv": torch.rand(3, 2, 3)}
    found = find(table(tensors), method("fp8", weight_block_size=[32, 32]))
    expected = theirs(tensors["x.gate_up_proj"], tensors["x.gate_up_proj_scale_inv"])
    assert torch.equal(expand(found, tensors, "x.gate_up_proj"), expected)
    columns = tensors | {"x.gate_up_proj_scale_inv": torch.rand(3, 1, COLUMNS)}  # as fbgemm has them
    found = find(table(columns), method("fbgemm_fp8"))
    expected = columns["x.gate_up_proj"].float() * columns["x.gate_up_proj_scale_inv"]
    assert torch.equal(expand(found, columns, "x.gate_up_proj"), expected)


def test_blocks_at_the_edge_are_cut() -> None:
    tensors = {"x.weight": weight(70, 100), "x.weight_scale_inv": torch.rand(3, 4)}
    found = expand(find(table(tensors), method("fp8", weight_block_size=[32, 32])), tensors)
    scale = tensors["x.weight_scale_inv"].repeat_interleave(32, 0).repeat_interleave(32, 1)
    assert torch.equal(found, tensors["x.weight"].float() * scale[:70, :100])


def test_scales_of_inputs_and_of_the_cache_have_no_effect() -> None:
    tensors = {"x.weight": weight(ROWS, COLUMNS), "x.weight_scale": torch.tensor([0.5])}
    idle = {f"x.{name}": torch.tensor([3.0]) for name in ("input_scale", "k_scale", "v_scale")}
    found = find(table(tensors | idle), method("fp8"))
    assert found.used() == {*tensors, *idle}
    assert torch.equal(expand(found, tensors), tensors["x.weight"].float() * 0.5)


def test_modelopt_has_a_scale_for_all_beside_those_of_groups() -> None:
    torch.manual_seed(1)
    tensors = {
        "x.weight": torch.randint(0, 256, (ROWS, COLUMNS // 2), dtype=torch.uint8),
        "x.weight_scale": torch.rand(ROWS, COLUMNS // 16).to(torch.float8_e4m3fn),
        "x.weight_scale_2": torch.tensor(0.25),
    }
    found = expand(find_modelopt(table(tensors), method("modelopt", quant_algo="NVFP4")), tensors)
    plain = Fp8Dequantize(None)._unpack_fp4(tensors["x.weight"])
    scale = tensors["x.weight_scale"].float() * 0.25
    assert torch.equal(found, plain * scale.repeat_interleave(16, 1))
    fp8 = {"x.weight": weight(ROWS, COLUMNS), "x.weight_scale": torch.tensor(0.5)}
    found = expand(find_modelopt(table(fp8), method("modelopt", quant_algo="FP8")), fp8)
    assert torch.equal(found, fp8["x.weight"].float() * 0.5)
    with pytest.raises(ModelUnavailable, match="its `quant_algo` 'w4a8_awq' can't be read"):
        find_modelopt(table(fp8), method("modelopt", quant_algo="W4A8_AWQ"))


@pytest.mark.parametrize(
    ("scale", "settings", "message"),
    [
        (None, {}, "lack `x.weight_scale_inv`, the scale of `x.weight`"),
        (
            torch.rand(2, 4),
            {"weight_block_size": [32, 32]},
            "have 2x4 scales in `x.weight_scale_inv` for 64x96",
        ),
        (torch.rand(5, 1), {}, "have 5x1 scales"),
        (torch.rand(0, 3), {}, "have `x.weight_scale_inv` in F32 and 0x3"),
        (torch.rand(63), {}, "have 63 scales"),
        (torch.rand(2, 3, 1), {}, "have 2x3x1 scales"),
        (torch.ones(2, 3).int(), {}, "have `x.weight_scale_inv` in I32"),
        (torch.rand(2, 3), {"weight_block_size": [0, 32]}, r"`weight_block_size` \[0, 32\] can't be read"),
        (torch.rand(2, 3), {"weight_block_size": "x"}, "`weight_block_size` 'x' can't be read"),
    ],
)
def test_what_does_not_fit_is_refused(scale: Tensor | None, settings: Any, message: str) -> None:
    tensors = {"x.weight": weight(ROWS, COLUMNS)}
    if scale is not None:
        tensors["x.weight_scale_inv"] = scale
    with pytest.raises(ModelUnavailable, match=message):
        find(table(tensors), method("fp8", **settings))
