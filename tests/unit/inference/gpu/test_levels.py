"""The measure is each model's own eager forward, computed here once more by transformers alone."""

from __future__ import annotations

from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch import Tensor  # noqa: E402
from transformers import PreTrainedModel  # noqa: E402

from inference.gpu.ops import Ops, torch_ops, triton_ops  # noqa: E402
from inference.gpu.stack import DeviceLayer  # noqa: E402
from inference.levels.served import Level, Served  # noqa: E402
from inference.loading.level import Options, bring_up  # noqa: E402
from inference.models.quantised import keep_codes  # noqa: E402
from inference.quantised.rounding4 import round_rows  # noqa: E402
from tests.unit.inference.gpu.device_models import (  # noqa: E402
    BLOCKS,
    PROMPT,
    apart,
    device_ops,
    device_toy,
    logits_in_pieces,
    own_logits,
)
from tests.unit.inference.toy_models import FAMILIES  # noqa: E402

NEAR = 2e-5
STEEP = {
    "rope_type": "yarn",
    "factor": 4.0,
    "rope_theta": 1e4,
    "original_max_position_embeddings": 64,
    "llama_4_scaling_beta": 0.5,
}
FUSED = {
    "llama", "llama with tied weights", "llama with biases", "mistral", "qwen3", "gemma2", "gemma3_text",
    "phi3", "olmo2", "granite", "smollm3", "glm", "glm4", "exaone4",
}  # fmt: skip
OTHERS = {
    "gpt2": Level.PAGED, "gpt_neox": Level.PAGED, "cohere": Level.PAGED_MERGED, "mixtral": Level.PAGED_MERGED,
    "llama4_text": Level.PAGED_MERGED, "bloom": Level.PAGED, "falcon": Level.PAGED,
    "falcon with one head of keys": Level.PAGED, "mpt": Level.PAGED, "starcoder2": Level.PAGED_MERGED,
    "gptj": Level.PAGED_MERGED, "codegen": Level.PAGED, "cohere2": Level.PAGED_MERGED,
    "opt": Level.PAGED_MERGED, "gpt_bigcode": Level.PAGED, "persimmon": Level.PAGED,
    "stablelm": Level.PAGED_MERGED, "nemotron": Level.PAGED_MERGED, "olmo": Level.PAGED_MERGED,
    "cohere2_moe": Level.PAGED_MERGED, "xglm": Level.SEQUENTIAL, "roformer": Level.SEQUENTIAL,
}  # fmt: skip


def serve(model: PreTrainedModel, ops: Ops | None = None, **options: Any) -> Served:
    return bring_up(
        model,
        Options(library=None, ops=ops or device_ops(), dtype=model.dtype, max_total_tokens=256, **options),
    )


def logits(served: Served, size: int, *, beside: bool = True) -> Tensor:
    return logits_in_pieces(served.make_runner(BLOCKS), size, beside=beside)


@pytest.mark.parametrize("family", FAMILIES)
def test_best_level_gives_the_models_own_logits_far_beyond_what_the_proof_looks_at(family: str) -> None:
    model = device_toy(family)
    expected = own_logits(model)
    served = serve(model)
    assert served.level is OTHERS.get(family, Level.FUSED)
    assert (served.reason == "") is (family in FUSED)
    assert (served.make_model is None) is (served.level is Level.SEQUENTIAL)
    if served.level.chunked:
        for size, beside in ((len(PROMPT), False), (21, True), (1, True)):
            assert apart(logits(served, size, beside=beside), expected) < NEAR


FORMS: dict[str, dict[str, Any]] = {  # that the layers over Triton's kernels don't have, and what shows them
    "hunyuan_v1_dense": {"head_dim": 16},
    "ministral3": {"head_dim": 16, "rope_parameters": STEEP},
    "bitnet": {},
    "apertus": {},
    "afmoe": {"num_dense_layers": 3, "head_dim": 16},
    "nanochat": {},
}


@pytest.mark.parametrize("family", FORMS)
def test_layers_of_other_forms_are_left_to_the_models_own_code(family: str) -> None:
    model = device_toy(family, **FORMS[family])
    expected = own_logits(model)
    served = serve(model)
    assert served.level in (Level.PAGED, Level.PAGED_MERGED)
    assert "its layers can't be fused" in served.reason
    assert apart(logits(served, 21), expected) < NEAR


@pytest.mark.parametrize("family", ["llama", "gemma2", "olmo2", "glm4", "granite", "mixtral", "gpt2"])
def test_in_16_bits_a_model_is_off_by_rounding(family: str) -> None:
    model = device_toy(family, torch.bfloat16)
    exact = own_logits(device_toy(family).bfloat16().float())
    own = own_logits(model)
    served = serve(model)
    assert served.level is OTHERS.get(family, Level.FUSED)
    assert served.kv_dtype == torch.bfloat16
    found = logits(served, 21)
    errors, owns = ((each - exact).norm(dim=-1) / exact.norm(dim=-1) for each in (found, own))
    assert float(errors.median()) <= 1.5 * float(owns.median())


@pytest.mark.parametrize(
    ("family", "options", "level", "reason"),
    [
        ("llama", {"fuse": False}, Level.PAGED_MERGED, "fusing layers is switched off"),
        ("gemma3_text", {"fuse": False, "merge": False}, Level.PAGED, "merging is switched off"),
        ("mixtral", {"merge": False}, Level.PAGED, "merging is switched off"),
        ("gpt2", {"fuse": False}, Level.PAGED, "it has no parallel linears"),
    ],
)
def test_switched_off_parts_change_the_level_and_not_the_logits(
    family: str, options: dict[str, Any], level: Level, reason: str
) -> None:
    model = device_toy(family)
    expected = own_logits(model)
    served = serve(model, **options)
    assert served.level is level
    assert reason in served.reason
    assert apart(logits(served, 16), expected) < NEAR


@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_without_triton_torch_serves_at_the_same_level(family: str) -> None:
    model = device_toy(family)
    expected = own_logits(model)
    served = serve(model, torch_ops())
    assert served.level is OTHERS.get(family, Level.FUSED)
    assert apart(logits(served, 16), expected) < NEAR
    assert not served.exact


@pytest.mark.parametrize("family", ["llama", "gemma2", "gpt2"])
def test_level_that_does_not_reproduce_is_undone(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = device_toy(family)
    expected = own_logits(model)
    ops = torch_ops()
    monkeypatch.setattr(ops, "rms_norm", lambda x, weight, eps: x * 1.1)
    monkeypatch.setattr(ops, "linear", lambda x, weight, bias: x @ weight.T * 1.1)
    monkeypatch.setattr("inference.gpu.build._NEAR", 1e9)
    served = serve(model, ops)
    assert served.level is Level.PAGED
    assert "doesn't reproduce its logits" in served.reason
    assert apart(logits(served, 16), expected) < NEAR
    model.set_attn_implementation("eager")
    assert torch.equal(own_logits(model), expected)


def test_layers_that_raise_are_served_at_another_level(monkeypatch: pytest.MonkeyPatch) -> None:
    model = device_toy("llama")
    expected = own_logits(model)
    monkeypatch.setattr(DeviceLayer, "run", lambda *_: [][0])
    served = serve(model)
    assert served.level is Level.PAGED_MERGED
    assert "its layers can't be fused: IndexError" in served.reason
    assert apart(logits(served, 16), expected) < NEAR


def test_running_out_of_memory_is_not_taken_for_a_layer_of_another_shape(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def out(*_: object) -> None:
        raise torch.OutOfMemoryError("2 GiB wanted")

    monkeypatch.setattr("inference.gpu.levels.build_stack", out)
    with pytest.raises(torch.OutOfMemoryError):
        serve(device_toy("llama"))


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "cohere", "mixtral"])
def test_tritons_kernels_give_the_models_own_logits(family: str) -> None:
    pytest.importorskip("triton")
    model = device_toy(family, num_hidden_layers=1)
    expected = own_logits(model)
    served = serve(model, triton_ops())
    assert served.level is OTHERS.get(family, Level.FUSED)
    assert apart(logits(served, 40), expected) < NEAR


@pytest.mark.slow
@pytest.mark.parametrize("deterministic", [False, True])
def test_tritons_kernels_give_them_of_weights_in_4_bits(deterministic: bool) -> None:
    pytest.importorskip("triton")
    model = device_toy("llama", num_hidden_layers=1)
    for module in model.model.modules():
        if type(module) is torch.nn.Linear:
            keep_codes(module, round_rows(module.weight.cpu(), "fp4").to(model.device))
    expected = own_logits(model)
    served = serve(model, triton_ops(deterministic=deterministic))
    assert served.level is Level.FUSED
    assert served.keeps_codes
    assert served.exact is deterministic
    assert apart(logits(served, 40), expected) < NEAR


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama", "mixtral"])
def test_one_order_of_sums_gives_the_same_bits_however_a_prompt_is_cut(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    monkeypatch.setattr("inference.levels.proof._SMALL", 0)  # a long proof takes the interpreter a minute
    served = serve(device_toy(family, num_hidden_layers=1), triton_ops(deterministic=True))
    assert served.exact
    assert torch.equal(logits(served, 40), logits(served, len(PROMPT), beside=False))
