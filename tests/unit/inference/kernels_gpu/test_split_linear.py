from __future__ import annotations

import pytest
import torch

from inference.kernels.gpu.split_linear import split_linear, splits
from tests.unit.inference.triton_device import DEVICE


@pytest.mark.parametrize(("rows", "outputs", "inner", "parts"), [(17, 40, 64, 4), (33, 300, 4864, 8)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_parts_added_up_are_the_product(
    rows: int, outputs: int, inner: int, parts: int, biased: bool, dtype: torch.dtype
) -> None:
    x, weight, bias = (
        torch.randn(shape, device=DEVICE).to(dtype) for shape in ((rows, inner), (outputs, inner), (outputs,))
    )
    y = split_linear(x, weight, bias if biased else None, parts=parts)
    exact = x.double() @ weight.double().T + (bias.double() if biased else 0.0)
    rounding = torch.finfo(dtype).eps / 2
    assert y.dtype == dtype
    assert (y.double() - exact).norm() <= rounding * exact.norm()


def test_rows_that_lie_apart_are_multiplied_too() -> None:
    x, weight = torch.randn(20, 256, device=DEVICE).half(), torch.randn(8, 128, device=DEVICE).half()
    y = split_linear(x[:, :128], weight, None, parts=4)
    assert torch.equal(y, split_linear(x[:, :128].contiguous(), weight, None, parts=4))


def test_parts_that_are_unlike_are_refused() -> None:
    x, weight = torch.zeros(20, 30), torch.zeros(8, 30)
    with pytest.raises(ValueError, match="30 inputs can't be divided into 4 parts"):
        split_linear(x, weight, None, parts=4)


@pytest.mark.parametrize(
    ("rows", "outputs", "inner", "dtype", "expected"),
    [
        (152, 896, 4864, torch.bfloat16, [4, 8]),  # what it is made for
        (152, 896, 896, torch.bfloat16, []),  # parts would be short
        (152, 9728, 4864, torch.bfloat16, []),  # programs enough
        (152, 896, 4864, torch.float32, []),
        (152, 896, 4866, torch.bfloat16, []),  # parts would begin anywhere
    ],
)
def test_only_what_gives_too_few_programs_is_tried_in_parts(
    rows: int, outputs: int, inner: int, dtype: torch.dtype, expected: list[int]
) -> None:
    assert list(splits(rows, outputs, inner, dtype, 132)) == expected
