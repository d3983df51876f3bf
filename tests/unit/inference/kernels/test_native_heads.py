"""Products of each head's numbers with a linear of its own: right, and a row's bits are its own."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from inference.kernels.native import PackedLinear, WeightKind
from inference.kernels.native_heads import PackedHeads
from tests.unit.inference.paged_attention import ISAS, LIBRARIES, built

torch.set_num_threads(1)
pytestmark = built
BESIDE = 7.0  # what lies between the heads' products
SHAPES = [(4, 512, 128), (16, 128, 512), (3, 17, 9), (5, 40, 33)]  # heads, n, k
KINDS = [WeightKind.FLOAT32, WeightKind.BFLOAT16, WeightKind.CODED]


def multiplied(heads: PackedHeads, x: torch.Tensor) -> torch.Tensor:
    """Return the products of x (rows, heads, k and one more), which are written into rows that are longer."""
    y = torch.full((len(x), x.shape[1], heads.n + 3), BESIDE)
    heads.multiply(x[..., : heads.k], y[..., : heads.n])
    assert bool((y[..., heads.n :] == BESIDE).all())
    return y[..., : heads.n]


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_each_head_is_multiplied_by_its_own_linear(data: st.DataObject) -> None:
    (count, n, k), rows = data.draw(st.sampled_from(SHAPES)), data.draw(st.integers(1, 130))
    isa, kind = data.draw(st.sampled_from(ISAS)), data.draw(st.sampled_from(KINDS))
    rounds = kind is not WeightKind.FLOAT32 and data.draw(st.booleans())
    generator = torch.Generator().manual_seed(rows)
    weight = torch.randn(count, n, k, generator=generator).bfloat16().float()
    x = torch.randn(rows, count, k + 1, generator=generator)
    x = x.bfloat16().float() if rounds else x
    found = []
    for threads in (1, 3):
        library = LIBRARIES[isa, threads]
        if kind is WeightKind.CODED and not library.compresses:
            return
        heads = PackedHeads(
            [PackedLinear.pack(library, each, None, kind, round_inputs=rounds) for each in weight]
        )
        found.append(multiplied(heads, x))
        alone = torch.cat([multiplied(heads, row) for row in x.split(1)])
        assert torch.equal(found[-1], alone)
    assert torch.equal(*found)
    expected = torch.einsum("rhk,hnk->rhn", x[..., :k].double(), weight.double())
    torch.testing.assert_close(found[0].double(), expected, atol=2e-4, rtol=1e-5)


@pytest.mark.parametrize("shape", [(2, 4, 9), (2, 3, 8), (2, 3, 10)])
def test_inputs_of_another_shape_are_refused(shape: tuple[int, int, int]) -> None:
    library = LIBRARIES[ISAS[0], 1]
    linears = [PackedLinear.pack(library, torch.ones(5, 9), None, WeightKind.FLOAT32) for _ in range(3)]
    with pytest.raises(AssertionError, match="for each linear"):
        PackedHeads(linears).multiply(torch.zeros(shape), torch.zeros(*shape[:2], 5))
