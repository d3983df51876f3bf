"""Layers with inputs of their own and keys of others, as Gemma 4's, in one call of C say what theirs says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from transformers import AutoConfig, AutoModelForCausalLM  # noqa: E402

from codegen import toys  # noqa: E402
from inference.kernels.native import Library, WeightKind  # noqa: E402
from inference.levels.proof import proof_prompts  # noqa: E402
from inference.levels.served import Level  # noqa: E402
from inference.models.anatomy import read_model  # noqa: E402
from inference.models.layers import OtherShape  # noqa: E402
from inference.models.lora import fixed_linears  # noqa: E402
from inference.models.paged import use_paged_attention  # noqa: E402
from inference.models.quantised import codes_of, keep_codes  # noqa: E402
from inference.models.replaced import replaced_ids  # noqa: E402
from inference.quantised.rounding4 import round_rows  # noqa: E402
from tests.unit.inference.cpu.fused import assert_near, assert_same_bits, assert_says_the_same, serve  # noqa: E402
from tests.unit.inference.cpu.test_stack import fuse  # noqa: E402
from tests.unit.inference.level_logits import PROMPT, own_logits  # noqa: E402

SLIDING, FULL = "sliding_attention", "full_attention"
COMMON: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 6,
    "num_attention_heads": 4,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "global_head_dim": 32,
    "layer_types": [SLIDING, FULL, SLIDING, FULL, SLIDING, FULL],
    "sliding_window": 24,
    "max_position_embeddings": 512,
    "final_logit_softcapping": 30.0,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
INPUTS = {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 97}
K_EQ_V = {"attention_k_eq_v": True, "num_key_value_heads": 4, "num_global_key_value_heads": 2}
# As the checkpoints are shaped, but small
SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "E2B": ("gemma4_text", {**INPUTS, "num_kv_shared_layers": 2, "use_double_wide_mlp": True}),
    "E4B": ("gemma4_text", {**INPUTS, "num_kv_shared_layers": 2, "num_key_value_heads": 2}),
    "31B": ("gemma4_text", {"hidden_size_per_layer_input": 0, **K_EQ_V}),
    "12B": ("gemma4_unified_text", K_EQ_V),
}
every_shape = pytest.mark.parametrize("name", SHAPES)


def model_of(name: str) -> Any:
    """Return a random model whose norms and scales are no ones."""
    kind, own = SHAPES[name]
    torch.manual_seed(0)
    config = AutoConfig.for_model(kind, **{**COMMON, **own})
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
    for path, weight in model.named_parameters():
        mean = 0.4 if path.endswith(("q_norm.weight", "k_norm.weight")) else 1.0
        torch.nn.init.normal_(weight, mean if weight.dim() == 1 else 0.0, 0.1)
    for index, layer in enumerate(model.model.layers):
        layer.layer_scalar.fill_(0.6 + 0.1 * index)
    return model


@every_shape
@pytest.mark.parametrize("trim", [True, False])
def test_they_say_what_the_models_own_code_says(name: str, trim: bool, library: Library) -> None:
    assert assert_says_the_same(model_of(name), library, trim=trim).exact


@every_shape
@pytest.mark.parametrize("options", [{}, {"quantize": True}, {"round_inputs": True}], ids=str)
def test_bits_are_the_same_however_a_prompt_is_cut(
    name: str, options: dict[str, Any], library: Library
) -> None:
    assert_same_bits(model_of(name), library, **options)


@every_shape
@pytest.mark.parametrize("kind", [None, WeightKind.INT8])
def test_undone_the_model_has_all_its_weights_again(
    name: str, kind: WeightKind | None, library: Library
) -> None:
    model = model_of(name)
    before = {path: weight.clone() for path, weight in model.state_dict().items()}
    fused = fuse(model, library, kind)
    linears = [each for each in model.modules() if isinstance(each, torch.nn.Linear)]
    assert all(each.weight is None for each in linears)
    fused.undo()
    after = model.state_dict()
    assert before.keys() == after.keys()
    for path, weight in before.items():
        if kind is None:
            assert torch.equal(after[path], weight)
        else:
            assert (after[path] - weight).norm() <= 0.02 * weight.norm()


def test_what_makes_inputs_keeps_its_few_bits_and_has_them_again(library: Library) -> None:
    model = model_of("E2B").requires_grad_(False)
    own = model.model.per_layer_model_projection
    keep_codes(own, round_rows(own.weight, "nf4"))
    expected = own_logits(model, PROMPT)
    fused = fuse(model, library)
    inputs = fused._ends.inputs
    assert inputs is not None
    assert inputs.form == "4 bits"
    fused.undo()
    again = model.model.per_layer_model_projection
    assert codes_of(again) is not None
    assert_near(own_logits(model, PROMPT), expected, 1e-6)


def test_layers_that_borrow_keys_and_values_take_no_cache(library: Library) -> None:
    """Not at the level fused; elsewhere each layer keeps what its attention is given."""
    kept, heads = [16, 32, 16, 32, 16, 32], 1
    fused, apart = (serve(model_of("E2B"), library, fuse=fuse) for fuse in (True, False))
    assert (fused.level, apart.level) == (Level.FUSED, Level.NATIVE)
    assert fused.kv_bytes == 4 * 2 * heads * sum(kept[:4])
    assert apart.kv_bytes == 4 * 2 * heads * sum(kept)


def test_norms_of_other_epsilons_are_refused() -> None:
    model = model_of("E2B")
    probed = use_paged_attention(model)
    model.model.layers[1].post_per_layer_input_norm.eps = 1e-3
    with pytest.raises(OtherShape, match="its norms have different epsilons"):
        read_model(model, probed, proof_prompts(model)[0], 64)


def test_fewer_rows_of_inputs_than_ids_are_refused() -> None:
    model = model_of("E2B")
    probed, prompt, table = use_paged_attention(model), proof_prompts(model)[0], model.get_input_embeddings()
    table.weight = torch.nn.Parameter(torch.cat([table.weight, table.weight[:4]]), requires_grad=False)
    with pytest.raises(OtherShape, match="has fewer rows than its embedding"):
        read_model(model, probed, prompt, 64)


@every_shape
def test_gpus_leave_them_to_their_own_code(name: str) -> None:
    model = model_of(name)
    probed = use_paged_attention(model)
    prompt = proof_prompts(model)[0]
    assert read_model(model, probed, prompt, 64).parts
    with pytest.raises(OtherShape, match="aren't what linears of its own give"):
        read_model(model, probed, prompt, 64, llamas=True)


def test_layers_own_inputs_and_scale_are_no_llamas(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of("E2B")
    monkeypatch.setattr("inference.models.layers.LayerParts.keeps_less", False)
    probed = use_paged_attention(model)
    parts = read_model(model, probed, proof_prompts(model)[0], 64).parts
    assert [each.scale for each in parts] == pytest.approx([0.6, 0.7, 0.8, 0.9, 1.0, 1.1])
    others = {"model.layers.0.per_layer_input_gate", "model.per_layer_model_projection"}
    assert fixed_linears(model, parts) >= others
    plain = replace(parts[0], norms=replace(parts[0].norms, value=None), per_layer=None, scale=1.0)
    plain.check_llamas()
    for other in (replace(plain, per_layer=parts[0].per_layer), replace(plain, scale=0.5)):
        with pytest.raises(OtherShape, match="it has inputs of its own, or a scale"):
            other.check_llamas()


def test_layers_that_attend_to_anothers_keys_say_whose() -> None:
    model = model_of("E2B")
    probed = use_paged_attention(model)
    own = [layer.self_attn for layer in model.model.layers]
    assert [probed[each].borrows for each in own] == [None, None, None, None, own[2], own[3]]


def test_ids_of_images_are_taken_for_others_as_the_model_takes_them(library: Library) -> None:
    model = toys.toy_model("gemma4")
    image, pad = model.config.image_token_id, model.config.get_text_config().pad_token_id
    assert replaced_ids(model) == {image: pad}
    assert image in PROMPT
    assert_says_the_same(model, library)
