from __future__ import annotations

import weakref

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor, nn  # noqa: E402
from torch import dtype as Dtype  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402
from transformers.models.llama import modeling_llama  # noqa: E402

from inference.gpu.build import Rebuilt, Stack, build_stack  # noqa: E402
from inference.gpu.linears import Multiplier  # noqa: E402
from inference.gpu.model import EagerRunner  # noqa: E402
from inference.gpu.ops import Weight  # noqa: E402
from inference.levels.proof import proof_prompts  # noqa: E402
from inference.models.layers import OtherShape  # noqa: E402
from inference.models.paged import use_paged_attention  # noqa: E402
from inference.models.quantised import keep_codes  # noqa: E402
from inference.quantised.rounding4 import round_rows  # noqa: E402
from tests.unit.inference.gpu.device_models import (  # noqa: E402
    BLOCKS,
    DEVICE,
    apart,
    device_ops,
    device_toy,
    logits_in_pieces,
    own_logits,
)

PARALLEL = ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")


def build(model: PreTrainedModel) -> Stack:
    probed = use_paged_attention(model)
    try:
        return build_stack(model, probed, Multiplier(device_ops()), model.dtype, proof_prompts(model)[0], 256)
    finally:
        model.set_attn_implementation("eager")


def linears(model: PreTrainedModel) -> dict[str, nn.Linear]:
    return {name: module for name, module in model.named_modules() if isinstance(module, nn.Linear)}


def address(weight: Weight) -> int:
    assert isinstance(weight, Tensor)
    return weight.data_ptr()


def alive(weights: list[weakref.ref[Tensor]]) -> int:
    return sum(each() is not None for each in weights)


def test_weights_that_are_merged_are_freed_and_the_others_are_shared() -> None:
    model = device_toy("llama", torch.bfloat16)
    merged = [weakref.ref(each.weight) for name, each in linears(model).items() if name.endswith(PARALLEL)]
    single = {each.weight.data_ptr() for name, each in linears(model).items() if not name.endswith(PARALLEL)}
    stack = build(model)
    assert alive(merged) == 0
    device_model = stack.make_model(2, 64)
    kept = {address(linear.weight) for layer, _ in device_model._layers for linear in (layer.out, layer.down)}
    assert kept | {address(device_model._ends.head.weight)} == single
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
    assert table == ends.table.data_ptr() == address(ends.head.weight)


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


def test_clipping_that_no_proof_comes_to_see_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    rotate = modeling_llama.apply_rotary_pos_emb
    monkeypatch.setattr(
        modeling_llama,
        "apply_rotary_pos_emb",
        lambda query, key, cos, sin: rotate(query.clamp(-50, 50), key, cos, sin),
    )
    with pytest.raises(OtherShape, match="its queries, keys or values are clipped"):
        build(device_toy("llama"))


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ["llama", "llama with biases", "phi3", "gemma2", "olmo2"])
def test_layers_in_4_bits_compute_what_they_do_expanded(family: str, dtype: Dtype) -> None:
    kept, expanded = (device_toy(family, dtype) for _ in range(2))
    for name, module in linears(kept).items():
        if name != "lm_head":
            codes = round_rows(module.weight.cpu(), "nf4").to(DEVICE)
            linears(expanded)[name].weight.copy_(codes.expand())
            keep_codes(module, codes, dtype)
    own = own_logits(kept)
    stack, plain = build(kept), build(expanded)
    assert len(stack.packed) == 4 * len(kept.model.layers)
    assert not plain.packed
    found, expected = (
        logits_in_pieces(EagerRunner(each.make_model(BLOCKS, 256)), 40) for each in (stack, plain)
    )
    if DEVICE.type == "cpu":
        assert torch.equal(found, expected)
    assert apart(found, expected) < (1e-4 if dtype == torch.float32 else 3e-2)
    stack.undo()
    assert apart(own_logits(kept), own) < (1e-6 if dtype == torch.float32 else 1e-9)


def test_layers_in_4_bits_are_put_back_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = device_toy("llama", torch.float32)
    for name, module in linears(model).items():
        if name != "lm_head":
            keep_codes(module, round_rows(module.weight.cpu(), "nf4").to(DEVICE))
    stack, left, undo = build(model), [], Rebuilt.undo
    codes = [weakref.ref(each.linear.weight.codes) for each in stack.packed]

    def counted(layer: Rebuilt) -> None:
        left.append(alive(codes))
        undo(layer)

    monkeypatch.setattr(Rebuilt, "undo", counted)
    stack.undo()
    layers = len(model.model.layers)
    assert left == [4 * each for each in range(layers, 0, -1)]
    assert alive(codes) == 0
