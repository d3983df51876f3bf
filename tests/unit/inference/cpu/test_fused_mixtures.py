"""Mixtures of experts in one call of the C extension say what their models' own code says."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from codegen.toys import toy_model  # noqa: E402
from inference.cpu.stack import FusedRunner  # noqa: E402
from inference.kernels.native import Library, WeightKind  # noqa: E402
from inference.levels.served import Level  # noqa: E402
from inference.models.layers import OtherShape  # noqa: E402
from inference.models.lora import fixed_linears  # noqa: E402
from inference.models.weights import expert_weights, widen  # noqa: E402
from tests.unit.inference.cpu.fused import assert_near, assert_same_bits, assert_says_the_same, serve  # noqa: E402
from tests.unit.inference.cpu.test_stack import fuse  # noqa: E402
from tests.unit.inference.level_logits import PROMPT, own_logits, served_logits  # noqa: E402

# Plain; layers without experts, and a correction; a gated MLP; a block of another name; turned experts; with
# gates beside ups, sinks, and rotations of which half is made
FAMILIES = ("qwen3_moe", "glm4_moe", "qwen2_moe", "granitemoe", "aria_text", "gpt_oss")


def model_of(family: str) -> PreTrainedModel:
    model = toy_model(family)
    for name, buffer in model.named_buffers():
        if name.endswith("correction_bias"):
            nn.init.normal_(buffer, std=0.2)
    model = model.to(torch.bfloat16)
    widen(model)
    return model


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("trim", [True, False])
def test_they_say_what_the_models_own_code_says(family: str, trim: bool, library: Library) -> None:
    assert_says_the_same(model_of(family), library, trim=trim)


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("options", [{}, {"quantize": True}, {"round_inputs": True}], ids=str)
def test_bits_are_the_same_however_a_prompt_is_cut(
    family: str, options: dict[str, Any], library: Library
) -> None:
    assert_same_bits(model_of(family), library, **options)


def test_rounded_experts_are_chosen_by_an_exact_router(library: Library) -> None:
    served = serve(model_of("qwen3_moe"), library, quantize=True)
    rounded, exact = (
        [each for each in served.packed if (each.form == "int8") is is_int8] for is_int8 in (True, False)
    )
    layers, experts = 3, 4  # of a toy
    assert len(rounded) == 1 + layers * (2 + 2 * experts)
    assert [each.weight.shape[0] for each in exact] == [experts] * layers


def test_a_mixture_takes_no_more_memory_than_its_layers_apart(library: Library) -> None:
    sizes = [
        sum(each.nbytes for each in serve(model_of("qwen2_moe"), library, fuse=fuse).packed)
        for fuse in (True, False)
    ]
    assert sizes[0] <= sizes[1]


@pytest.mark.parametrize("family", FAMILIES)
def test_undone_the_model_is_what_it_was(family: str, library: Library) -> None:
    model = model_of(family)
    was = [each for each in model.modules() if expert_weights(each)]
    weights = [{name: each.clone() for name, each in expert_weights(own).items()} for own in was]
    expected = own_logits(model, PROMPT)
    fused = fuse(model, library)
    assert not any(expert_weights(each) for each in model.modules())
    fused.undo()
    assert [each for each in model.modules() if expert_weights(each)] == was
    for own, before in zip(was, weights, strict=True):
        for name, each in expert_weights(own).items():
            assert each.dtype is torch.bfloat16
            assert torch.equal(each, before[name])
    assert torch.equal(own_logits(model, PROMPT), expected)


def test_a_level_that_does_not_reproduce_is_undone(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("qwen3_moe")
    expected = own_logits(model, PROMPT)
    right = FusedRunner.run
    monkeypatch.setattr(FusedRunner, "run", lambda *given, **named: 1.1 * right(*given, **named))
    served = serve(model, library)
    assert served.level is Level.NATIVE
    assert "level fused can't be used" in served.reason
    assert_near(served_logits(served, 21), expected)


def test_layers_are_held_against_what_they_did(library: Library, monkeypatch: pytest.MonkeyPatch) -> None:
    """An expert's activation that is seen by nobody but its own layer."""
    model = model_of("qwen3_moe")
    experts: Any = next(each for each in model.modules() if expert_weights(each))
    own = experts.forward
    monkeypatch.setattr(experts, "forward", lambda *given: own(*given) * 1.05)
    weights = {name: each.clone() for name, each in expert_weights(experts).items()}
    with pytest.raises(OtherShape, match="a layer rebuilt from its parts computes something else"):
        fuse(model, library, WeightKind.INT8)
    assert all(torch.equal(each, weights[name]) for name, each in expert_weights(experts).items())


def test_linears_that_choose_or_gate_take_no_adapters(library: Library) -> None:
    model = model_of("qwen2_moe")
    gates = {path for path, _ in model.named_modules() if path.endswith("shared_expert_gate")}
    fused = fuse(model, library)
    assert fused.fixed == gates
    assert len(gates) == 3
    assert fixed_linears(model, []) == set()
    fused.undo()
    with pytest.raises(OtherShape, match=r"an adapter adds to `model\.layers\.0\.mlp\.shared_expert_gate`"):
        fuse(model, library, adapted={"model.layers.0.mlp.shared_expert_gate"})
    fuse(model, library, adapted={"model.layers.0.mlp.shared_expert.up_proj"})
