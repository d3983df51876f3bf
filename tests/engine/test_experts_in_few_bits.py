"""Mixtures' experts stay in the few bits that files have them in, and say what they say expanded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import PreTrainedModel

from codegen.toy_rules import OWN
from inference.errors import ModelUnavailable
from inference.files.checkpoint import read_weights
from inference.kernels.native import open_library
from inference.levels.ladder import Attempt, Climb
from inference.levels.served import Level, Served
from inference.loading.counting import held_weights
from inference.loading.source import find_source
from inference.models.weights import expert_weights
from inference.quantised.rounding4 import LEVELS
from tests.engine.cores import Session, config, request
from tests.engine.models import save_model
from tests.engine.quantised import Floats, Packed, describe, in_words_with_scales, save_quantised
from tests.engine.quantised_experts import save_mxfp4
from tests.engine.test_quantised import FORMATS, compressed
from tests.engine.texts import PROMPTS, check_texts, rounding

pytestmark = pytest.mark.skipif(open_library() is None, reason="the native kernels were not built")
# Gates and ups in files of their own names, under other names, with shared experts beside, without gates
FAMILIES = ("qwen3_moe", "mixtral", "deepseek_v3", "qwen2_moe")


def check(directory: Path, model: PreTrainedModel, said: str = "kept in 4 bits", **changes: bool) -> None:
    """Hold what the engine says of a model against transformers."""
    session = Session(replace(config(directory, max_total_tokens=64), **changes))  # type: ignore[arg-type]
    assert session.info.quantization is not None
    assert said in session.info.quantization
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize(
    ("name", "family"),
    [
        *(("awq", family) for family in FAMILIES),
        *((name, "qwen3_moe") for name in ("compressed in 4 bits", "bitsandbytes nf4", "gptq in 4 bits")),
    ],
)
def test_experts_stay_in_4_bits(name: str, family: str, tmp_path: Path) -> None:
    check_kept(name, family, tmp_path, "kept in 4 bits")


@pytest.mark.parametrize(
    ("name", "family"),
    [
        *(("compressed int8", family) for family in FAMILIES),
        *((name, "qwen3_moe") for name in ("fp8 by blocks", "compressed fp8", "bitsandbytes int8")),
    ],
)
def test_experts_stay_in_8_bits(name: str, family: str, tmp_path: Path) -> None:
    check_kept(name, family, tmp_path, "kept in 8 bits")


def check_kept(name: str, family: str, tmp_path: Path, said: str) -> None:
    """Check that all experts of a toy's files stay in their bits, and say what they say expanded."""
    model = save_quantised(family, tmp_path, FORMATS[name], rounded=False)
    found = find_source(config(tmp_path, max_total_tokens=64), 1, lambda _: None).kept
    sparse = {path for path, _ in found.experts.places}
    assert sparse
    assert len(found.experts.places) == 2 * len(sparse)
    assert found.experts.names == {name for name in _stored(tmp_path) if ".experts." in name}
    check(tmp_path, model, said)


def test_experts_of_mxfp4_stay_so(tmp_path: Path) -> None:
    check(tmp_path, save_mxfp4(tmp_path))


@pytest.mark.parametrize("off", ["compress_weights", "native_kernels"])
@pytest.mark.parametrize("name", ["awq", "mxfp4"])
def test_they_are_expanded_without_what_keeps_them(name: str, off: str, tmp_path: Path) -> None:
    mxfp4 = name == "mxfp4"
    model = save_mxfp4(tmp_path) if mxfp4 else save_quantised("qwen3_moe", tmp_path, FORMATS[name])
    check(tmp_path, model, f"expanded to {'bfloat16' if mxfp4 else 'float16'}", **{off: False})


def test_experts_of_which_one_is_in_other_bits_are_expanded(tmp_path: Path) -> None:
    keep = ("lm_head", "gate.weight", "layers.1.mlp.experts.2.up_proj")
    model = save_quantised("qwen3_moe", tmp_path, FORMATS["awq"], keep, rounded=False)
    found = find_source(config(tmp_path, max_total_tokens=64), 1, lambda _: None).kept
    assert {path.split(".")[2] for path, _ in found.experts.places} == {"0", "2"}
    session = Session(config(tmp_path, max_total_tokens=64))
    assert session.info.quantization is not None
    assert session.info.quantization.endswith("kept in 4 bits, some expanded to float16")
    del model
    session.close()


def test_an_expert_of_another_shape_ends_the_start_as_it_is_loaded(tmp_path: Path) -> None:
    save_quantised("qwen3_moe", tmp_path, FORMATS["awq"])
    tensors = load_file(tmp_path / "model.safetensors")
    for part in ("qweight", "qzeros", "scales"):
        name = f"model.layers.1.mlp.experts.2.up_proj.{part}"
        tensors[name] = tensors[name].chunk(2, 1)[0].contiguous()
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelUnavailable, match="can't be loaded: "):
        Session(config(tmp_path, max_total_tokens=64))


@pytest.mark.parametrize("number", [3, 6])
@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_another_number_of_experts_than_there_are_ends_the_start(
    family: str, number: int, tmp_path: Path
) -> None:
    if family == "gpt_oss":
        save_mxfp4(tmp_path)
    else:
        save_quantised(family, tmp_path, FORMATS["awq"])
    describe(tmp_path, num_experts=number, num_local_experts=number)
    sizes = rf"`model.layers.0.mlp.experts.down_proj` is 4x\d+x\d+ in the files and {number}x"
    with pytest.raises(ModelUnavailable, match=sizes):
        Session(config(tmp_path, max_total_tokens=64))


def test_experts_that_a_layers_code_begins_stay_in_few_bits(tmp_path: Path) -> None:
    family = "qwen3_omni_moe_thinker"  # of text alone the oracle's own code takes nothing
    keep = ("lm_head", "gate.weight", "visual", "audio")
    save_quantised(family, tmp_path, FORMATS["bitsandbytes int8"], keep)
    heard = []
    for on in (True, False):
        session = Session(replace(config(tmp_path, max_total_tokens=64), compress_weights=on))
        assert session.info.quantization is not None
        assert ("kept in 8 bits" in session.info.quantization) == on
        heard.append(session.run([request("0", PROMPTS[0], ignore_eos=True)]).tokens("0"))
        session.close()
    assert heard[0] == heard[1]


def test_gates_and_ups_may_be_in_groups_of_different_sizes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(OWN, "qwen3_moe", {**OWN.get("qwen3_moe", {}), "hidden_size": 256})
    several = [in_words_with_scales(4, size, zeros=False) for size in (128, 0)]

    def by_turns(weight: Floats, random: np.random.Generator) -> Packed:
        several.reverse()
        return several[0](weight, random)

    settings = compressed(
        "pack-quantized", num_bits=4, type="int", strategy="group", group_size=128, symmetric=True
    )
    form = replace(FORMATS["compressed in 4 bits"], packer=by_turns, settings=settings)
    model = save_quantised("qwen3_moe", tmp_path, form, ("lm_head", "gate.weight", "attn"), rounded=False)
    check(tmp_path, model)


def test_they_are_planned_with(tmp_path: Path) -> None:
    save_quantised("qwen3_moe", tmp_path, FORMATS["awq"])
    settings = config(tmp_path, max_total_tokens=64)
    sources = [find_source(replace(settings, compress_weights=on), 1, lambda _: None) for on in (True, False)]
    kept, expanded = (source.demand() for source in sources)
    spared = 2 * sources[0].kept.numbers - sources[0].kept.nbytes
    assert expanded.weights_bytes - kept.weights_bytes == spared
    assert expanded.loading_bytes - kept.loading_bytes == spared


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss"])
def test_a_level_that_is_left_again_leaves_them_as_they_were(
    family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gpt_oss = family == "gpt_oss"
    model = (
        save_mxfp4(tmp_path) if gpt_oss else save_quantised(family, tmp_path, FORMATS["awq"], rounded=False)
    )
    serve = Climb.serve
    tried: list[Level] = []

    def fails_once(climb: Climb, attempt: Attempt) -> Served | None:
        tried.append(attempt.level)
        return None if len(tried) == 1 else serve(climb, attempt)

    monkeypatch.setattr(Climb, "serve", fails_once)
    check(tmp_path, model)
    assert tried == [Level.FUSED, Level.NATIVE]


def _stored(directory: Path) -> list[str]:
    stored = read_weights(directory).stored
    assert stored is not None
    return list(stored.weights)


@pytest.mark.parametrize(("quantize", "linears", "beside"), [(None, 2, 2), ("int8", 1, 3)])
def test_a_layer_that_is_packed_beside_the_models_own_is_planned_with(
    tmp_path: Path, quantize: str | None, linears: int, beside: int
) -> None:
    model = save_model("qwen3_moe", tmp_path, dtype=torch.bfloat16)
    layer = sum(each.numel() for each in expert_weights(model.model.layers[0].mlp.experts).values())
    settings = config(tmp_path, max_total_tokens=64)
    asked = replace(settings, model=replace(settings.model, quantize=quantize))
    source = find_source(asked, 1, lambda _: None)
    held, demand = held_weights(source.described, source.weights, source.device), source.demand()
    assert demand.loading_how == "packed"
    assert demand.loading_bytes == held.size(4, linears) + beside * layer


def test_what_is_rounded_at_the_start_is_all_there_before(tmp_path: Path) -> None:
    save_model("qwen3_moe", tmp_path)
    source = find_source(rounding(tmp_path, "bitsandbytes-nf4"), 1, lambda _: None)
    demand = source.demand()
    assert len(source.kept.experts.rounded) == 3
    assert demand.loading_how == "rounded"
    assert demand.loading_bytes >= 2 * source.kept.numbers + source.kept.nbytes


@pytest.mark.parametrize("renamed", [True, False], ids=["said", "unsaid"])
def test_an_expert_whose_parts_are_of_two_kinds_is_expanded_or_refused_with_what_to_do(
    tmp_path: Path, *, renamed: bool
) -> None:
    """NF4 beside FP4 in one layer; where names don't say so, it is seen as the codes are read."""
    save_quantised("qwen3_moe", tmp_path, FORMATS["bitsandbytes nf4"], rounded=False)
    tensors = load_file(tmp_path / "model.safetensors")
    weight = "model.layers.0.mlp.experts.1.up_proj.weight"
    tensors[f"{weight}.quant_map"] = torch.tensor(LEVELS["fp4"])
    if renamed:
        state = tensors.pop(f"{weight}.quant_state.bitsandbytes__nf4")
        tensors[f"{weight}.quant_state.bitsandbytes__fp4"] = state
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    asked = [request(str(at), prompt) for at, prompt in enumerate(PROMPTS)]
    expanded = Session(replace(config(tmp_path, max_total_tokens=64), compress_weights=False))
    if not renamed:
        with pytest.raises(
            ModelUnavailable, match=rf"`{weight}` of the files are parts of one expert.*false"
        ):
            Session(config(tmp_path, max_total_tokens=64))
        expanded.close()
        return
    session = Session(config(tmp_path, max_total_tokens=64))
    assert session.info.quantization is not None
    assert "kept in 4 bits, some expanded" in session.info.quantization
    found, expected = session.run(asked), expanded.run(asked)
    session.close()
    expanded.close()
    assert [found.tokens(each.id) for each in asked] == [expected.tokens(each.id) for each in asked]
