"""Families whose layers have a form of their own: in one call of the C extension as in their own code."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import PreTrainedModel  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.kernels.native import Library  # noqa: E402
from inference.models.weights import widen  # noqa: E402
from tests.unit.inference.cpu.fused import assert_near, assert_same_bits, assert_says_the_same  # noqa: E402
from tests.unit.inference.cpu.test_stack import fuse  # noqa: E402
from tests.unit.inference.level_logits import PROMPT, own_logits  # noqa: E402

# Norms of heads behind the rotation, which may be the other way round; queries scaled by position; learned
# activations; SparseMixer; gates behind all queries; norms between linears, and behind them by other names;
# attention within another module
FAMILIES = (
    "hunyuan_v1_dense hunyuan_v1_moe nanochat ministral3 apertus phimoe afmoe bitnet hyperclovax gpt_neo"
).split()


def model_of(family: str) -> PreTrainedModel:
    """Return a toy none of whose numbers are what they begin as: those would hide an order of norms."""
    model = toy_model(family).requires_grad_(False)
    torch.manual_seed(1)
    for name, each in (*model.named_parameters(), *model.named_buffers()):
        if each.dim() == 1 and each.is_floating_point() and "inv_freq" not in name:
            each += torch.randn_like(each) * 0.3
    model = model.to(torch.bfloat16)
    if family == "phimoe":
        for layer in model.model.layers:
            layer.mlp.router.float()  # as it is loaded
            layer.mlp.router.router_jitter_noise = 0.05
    widen(model)
    return model


@pytest.mark.parametrize("family", FAMILIES)
def test_they_say_what_the_models_own_code_says(family: str, library: Library) -> None:
    assert_says_the_same(model_of(family), library)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"quantize": True}, {"round_inputs": True}], ids=str)
def test_bits_are_the_same_however_a_prompt_is_cut(
    family: str, options: dict[str, Any], library: Library
) -> None:
    assert_same_bits(model_of(family), library, (1, 33), **options)


@pytest.mark.parametrize("family", FAMILIES[:-1])  # the last one's own code is stood in for at all levels
def test_undone_the_model_computes_the_same_again(family: str, library: Library) -> None:
    model = model_of(family)
    expected = own_logits(model, PROMPT)
    fuse(model, library).undo()
    assert_near(own_logits(model, PROMPT), expected, 1e-6)


def test_attention_that_is_weaker_layer_by_layer(library: Library) -> None:
    model = toy_model("gpt2").requires_grad_(False)
    for number, block in enumerate(model.transformer.h):
        block.attn.scaling /= number + 1
    assert_says_the_same(model, library)


def test_how_queries_are_scaled_is_found_where_no_prompt_of_a_proof_comes(library: Library) -> None:
    model = model_of("ministral3")
    model.config.rope_parameters["original_max_position_embeddings"] = 200
    scales = [layer.parts.query_scales for layer in fuse(model, library)._layers]
    for each in scales:
        assert each is not None
        assert each.shape == (256,)
        assert (each[:200] == 1).all()
        assert (each[200:] > 1.05).all()
