"""Hybrids of layers that keep a state, attend, or do neither, in one call of C, say what theirs says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from codegen import toys  # noqa: E402
from codegen.toy_rules import OWN  # noqa: E402
from inference.cpu.stack import FusedModel  # noqa: E402
from inference.kernels.native import Library  # noqa: E402
from inference.kernels.native_model import EndWeights  # noqa: E402
from inference.levels.proof import proof_prompts  # noqa: E402
from inference.levels.served import Level  # noqa: E402
from inference.models.anatomy import read_model  # noqa: E402
from inference.models.ends import Ends  # noqa: E402
from inference.models.layers import OtherShape  # noqa: E402
from inference.models.lora import fixed_linears  # noqa: E402
from inference.models.mixtures import read_mixture  # noqa: E402
from inference.models.paged import use_paged_attention  # noqa: E402
from tests.unit.inference.cpu.fused import assert_near, assert_same_bits, assert_says_the_same, serve  # noqa: E402
from tests.unit.inference.level_logits import PROMPT, own_logits, served_logits  # noqa: E402

LINEAR, FULL = "linear_attention", "full_attention"
# A family, and its layers where they aren't its toy's
HYBRIDS: dict[str, tuple[str, list[str]]] = {
    "granite": ("granitemoehybrid", []),
    "granite, states alone": ("granitemoehybrid", [LINEAR, LINEAR]),
    "nemotron": ("nemotron_h", [LINEAR, "mlp", FULL, "moe", LINEAR]),
    "nemotron, an mlp first and last": ("nemotron_h", ["mlp", FULL, "moe", LINEAR, "mlp"]),
    "nemotron, attention last": ("nemotron_h", [LINEAR, "moe", "mlp", "mlp", FULL]),
    "mamba 2": ("mamba2", []),
    "mamba": ("mamba", []),
    "mamba, normalised": ("falcon_mamba", []),
    "jamba": ("jamba", []),
    "convolutions alone": ("lfm2", ["conv", "conv"]),
}
ENDS = Ends.weights.fget  # type: ignore[attr-defined]
every_hybrid = pytest.mark.parametrize("name", HYBRIDS)


def model_of(name: str, monkeypatch: pytest.MonkeyPatch) -> Any:
    family, layers = HYBRIDS[name]
    if layers:
        own = {**OWN.get(family, {}), "layer_types": layers, "num_hidden_layers": len(layers)}
        if family == "lfm2":
            own["full_attn_idxs"] = []
        monkeypatch.setitem(OWN, family, own)
    model = toys.toy_model(family)
    for buffer_name, buffer in model.named_buffers():
        if buffer_name.endswith("correction_bias"):
            torch.nn.init.normal_(buffer, std=0.2)
    return model


@every_hybrid
@pytest.mark.parametrize("trim", [True, False])
def test_they_say_what_the_models_own_code_says(
    name: str, trim: bool, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert assert_says_the_same(model_of(name, monkeypatch), library, trim=trim).exact


@every_hybrid
@pytest.mark.parametrize("options", [{}, {"quantize": True}, {"round_inputs": True}], ids=str)
def test_bits_are_the_same_however_a_prompt_is_cut(
    name: str, options: dict[str, Any], library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_same_bits(model_of(name, monkeypatch), library, **options)


@pytest.mark.parametrize("name", ["granite", "jamba", "nemotron"])
def test_the_models_own_linears_are_put_back(
    name: str, library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As they are where the whole model doesn't say what it did."""
    model = model_of(name, monkeypatch)
    expected = own_logits(model, PROMPT)
    undone: list[FusedModel] = []
    undo = FusedModel.undo

    def noted(fused: FusedModel) -> None:
        undone.append(fused)
        undo(fused)

    monkeypatch.setattr(FusedModel, "undo", noted)
    monkeypatch.setattr("inference.cpu.stack.Ends.weights", property(_other_ends))
    served = serve(model, library)
    assert (served.level, len(undone)) == (Level.NATIVE, 1), served.reason
    assert_near(served_logits(served, 21), expected)


def _other_ends(ends: Ends) -> EndWeights:
    return replace(ENDS(ends), head_factor=2.0)


def test_mixture_beside_an_mlp_is_one_block_whose_router_takes_no_adapters(
    library: Library, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OWN, "granitemoeshared", {"shared_intermediate_size": 96})
    model = toys.toy_model("granitemoeshared")
    layer = model.model.layers[0]
    router = layer.block_sparse_moe.router
    router.also = torch.nn.Linear(len(router.weight), 1, bias=False)  # which is of no use
    torch.nn.init.zeros_(router.also.weight)
    probed = use_paged_attention(model)
    anatomy = read_model(model, probed, proof_prompts(model)[0], 64, read_mixture)
    mixture = anatomy.parts[0].mixture
    assert mixture is not None
    assert mixture.shared is layer.shared_mlp
    assert fixed_linears(model, anatomy.parts) == {"model.layers.0.block_sparse_moe.router.also"}
    with pytest.raises(OtherShape, match="`MixtureBesideMlp` has no linears"):
        read_model(model, probed, proof_prompts(model)[0], 64, llamas=True)


def test_what_of_a_layer_is_missing_is_no_llamas(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPUs have kernels of Llama's shape alone: each layer attends, and has an MLP."""
    for layers in ([FULL, "mlp", FULL], [FULL, FULL]):
        monkeypatch.setitem(HYBRIDS, "attention", ("nemotron_h", layers))
        model = model_of("attention", monkeypatch)
        probed = use_paged_attention(model)
        assert read_model(model, probed, proof_prompts(model)[0], 64).parts[0].state is None
        with pytest.raises(OtherShape, match=r"aren't one list|it has no MLP"):
            read_model(model, probed, proof_prompts(model)[0], 64, llamas=True)
