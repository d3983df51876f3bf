from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from inference.gpu.build import Stack, build_stack  # noqa: E402
from inference.gpu.linears import Multiplier  # noqa: E402
from inference.levels.proof import proof_prompts  # noqa: E402
from inference.models.layers import OtherShape  # noqa: E402
from inference.models.paged import use_paged_attention  # noqa: E402
from tests.unit.inference.gpu.device_models import device_ops, device_toy, own_logits  # noqa: E402

PARALLEL = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


def build(model: PreTrainedModel) -> Stack:
    probed = use_paged_attention(model)
    try:
        return build_stack(model, probed, Multiplier(device_ops()), model.dtype, proof_prompts(model)[0], 256)
    finally:
        model.set_attn_implementation("eager")


def linears(model: PreTrainedModel) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def alive(weights: list[weakref.ref[Tensor]]) -> int:
    return sum(each() is not None for each in weights)


def test_weights_that_are_merged_are_freed_and_the_others_are_shared() -> None:
    model = device_toy("llama", torch.bfloat16)
    merged = [weakref.ref(each.weight) for name, each in linears(model).items() if name.endswith(PARALLEL)]
    single = {each.weight.data_ptr() for name, each in linears(model).items() if not name.endswith(PARALLEL)}
    stack = build(model)
    assert alive(merged) == 0
    device_model = stack.make_model(2, 64)
    kept = {
        linear.weight.data_ptr() for layer, _ in device_model._layers for linear in (layer.out, layer.down)
    }
    assert kept | {device_model._ends.head.weight.data_ptr()} == single
    assert all(each.weight is None for name, each in linears(model).items() if name != "lm_head")


def test_a_layer_is_freed_before_the_next_one_is_merged(monkeypatch: pytest.MonkeyPatch) -> None:
    model = device_toy("llama")
    parallel = [
        [weakref.ref(each.weight) for name, each in linears(layer).items() if name.endswith(PARALLEL)]
        for layer in model.model.layers
    ]
    seen = []

    def watch(trace: object) -> object:
        seen.append([alive(weights) for weights in parallel])
        return trace

    monkeypatch.setattr("inference.gpu.build.in_float32", watch)
    build(model)
    assert seen == [[5, 5, 5], [0, 5, 5], [0, 0, 5]]


def test_tied_weights_stay_one() -> None:
    model = device_toy("llama with tied weights", torch.bfloat16)
    table = model.get_input_embeddings().weight.data_ptr()
    ends = build(model).make_model(2, 64)._ends
    assert table == ends.table.data_ptr() == ends.head.weight.data_ptr()


@pytest.mark.parametrize("family", ["llama", "llama with biases", "phi3", "gemma2", "olmo2"])
def test_undone_the_model_computes_the_same_bits_again(family: str) -> None:
    model = device_toy(family)
    expected = own_logits(model)
    build(model).undo()
    assert torch.equal(own_logits(model), expected)


def test_last_layer_that_computes_something_else_leaves_the_model_as_it_was() -> None:
    model = device_toy("llama")
    model.model.layers[2].mlp.register_forward_hook(lambda _, given, result: result * 1.01)
    expected = own_logits(model)
    with pytest.raises(OtherShape, match="computes something else"):
        build(model)
    assert torch.equal(own_logits(model), expected)


def test_what_16_bits_hide_is_found() -> None:
    model = device_toy("llama", torch.bfloat16)
    model.model.layers[1].mlp.register_forward_hook(lambda _, given, result: result * 1.005)
    with pytest.raises(OtherShape, match="computes something else"):
        build(model)


@pytest.mark.parametrize(("family", "rotation"), [("llama", False), ("glm", True)])
def test_kind_of_rotation_is_found_by_trying(family: str, rotation: bool) -> None:
    layers = build(device_toy(family)).make_model(2, 64)._layers
    assert [rotation] * 3 == [layer.interleaved for layer, _ in layers]


def test_layers_share_the_tables_of_equal_rotations() -> None:
    model = build(device_toy("gemma3_text", num_hidden_layers=6)).make_model(2, 64)
    assert [0, 0, 0, 0, 0, 1] == [layer.rotary for layer, _ in model._layers]
    assert len(model._tables) == 2
    assert all(len(cosines) >= 64 for cosines, _ in model._tables)
