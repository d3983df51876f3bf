"""SparseMixer, as Phi 3.5 MoE chooses its experts, is found with its margin, or refused."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from hypothesis import given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from torch import nn  # noqa: E402
from transformers.models.phimoe.modeling_phimoe import sparsemixer  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.kernels.choosing import Choosing  # noqa: E402
from inference.models.layers import OtherShape  # noqa: E402
from inference.models.mixtures import read_mixture  # noqa: E402
from tests.unit.inference.models.test_mixtures import COUNT, Block, filled, read  # noqa: E402

SPARSE = Choosing(scoring="sparsemixer", chosen=2, margin=2 * 0.07)


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    jitter=st.floats(0.001, 0.5),
    spread=st.floats(0.01, 10),
    shift=st.floats(-5, 5),
    experts=st.integers(2, 20),
)
def test_it_chooses_as_transformers_does(
    seed: int, jitter: float, spread: float, shift: float, experts: int
) -> None:
    logits = torch.randn(20, experts, generator=torch.Generator().manual_seed(seed)) * spread + shift
    weights, index = sparsemixer(logits, jitter, training=False)
    order = index.sort(dim=-1)
    found = Choosing(scoring="sparsemixer", chosen=2, margin=2 * jitter)(logits)
    assert torch.equal(found[0], order.values)
    assert torch.allclose(found[1], weights.gather(-1, order.indices))


@pytest.mark.parametrize("leans", [False, True])
def test_it_is_found_with_its_margin(leans: bool) -> None:
    block = Block(SPARSE)
    block.lean = nn.Parameter(torch.empty(COUNT)) if leans else None
    block.noise, block.other = 0.07, 0.01
    parts = read(filled(block))
    assert parts.choosing == SPARSE
    assert (parts.bias is None) is not leans
    assert parts.correction is None


def test_phi_has_it() -> None:
    block = toy_model("phimoe").model.layers[0].mlp.requires_grad_(False)
    block.router.router_jitter_noise, block.router.input_jitter_noise = 0.2, 0.1
    assert read(block).choosing == Choosing(scoring="sparsemixer", chosen=2, margin=0.4)


@pytest.mark.parametrize("said", [0.06, 0.09])
def test_a_margin_that_is_not_the_modules_is_refused(said: float) -> None:
    block = Block(SPARSE)
    block.noise = said
    with pytest.raises(OtherShape, match="what chooses the experts of `Block` isn't known"):
        read_mixture(filled(block))


def test_a_margin_that_nothing_shows_is_refused() -> None:
    """All weights are 1: any smaller margin would do as well, until a text comes that shows it."""
    block = Block(Choosing(scoring="sparsemixer", chosen=2, margin=2e-9))
    block.noise = 1e-9
    with pytest.raises(OtherShape, match="what chooses the experts of `Block` isn't known"):
        read_mixture(filled(block))


def test_it_corrects_nothing() -> None:
    block = Block(SPARSE)
    block.noise = 0.07
    filled(block)
    del block.mend
    block.register_buffer("mend", torch.randn(COUNT))
    with pytest.raises(OtherShape, match="what chooses the experts of `Block` isn't known"):
        read_mixture(block)
