"""int8's linears at the values that only weights of others have: -128, which ours are never rounded to."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from inference.kernels.native import MOST_INT8_INPUTS, PackedLinear, WeightKind, open_library  # noqa: E402
from tests.isas import ISAS  # noqa: E402


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("count", [1, 8, 13])  # rows alone, of blocks, and of slices of a panel
@pytest.mark.parametrize("sign", [-1, 1])
def test_sums_are_exact_with_the_least_weights(isa: str, count: int, sign: int) -> None:
    library = open_library(1, isa)
    if library is None:
        pytest.skip(f"this CPU has no {isa}")
    weights = torch.full((40, MOST_INT8_INPUTS), -128, dtype=torch.int8)
    weights[1::2] = 127
    linear = PackedLinear.of_integers(library, weights, torch.ones(40), WeightKind.INT8)
    y = linear(torch.full((count, MOST_INT8_INPUTS), sign * 127.0))
    expected = weights[:, 0].double() * MOST_INT8_INPUTS * sign * 127
    assert torch.equal(y, expected.float().expand(count, 40))
