"""Linears that compute with weights in 4 bits, as files have them or rounded at the start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from inference.errors import ModelUnavailable
from inference.files.checkpoint import read_weights
from inference.files.model_files import safetensors_files
from inference.kernels.native import open_library
from inference.levels.ladder import Attempt, Climb
from inference.levels.served import Level, Served
from inference.loading.source import find_source
from inference.models.weights import expert_weights
from inference.quantised.stored import expanded
from tests.engine import quantised as packed
from tests.engine.adapters import toy_adapter
from tests.engine.cores import Session, config, request
from tests.engine.models import VOCABULARY, generate, save_model
from tests.engine.quantised import Format, save_quantised
from tests.engine.texts import PROMPTS, TOKENS, check_texts, rounding

needs_kernels = pytest.mark.skipif(open_library() is None, reason="the native kernels were not built")
AWQ = Format(packed.awq(32), {"quant_method": "awq", "bits": 4, "group_size": 32, "zero_point": True})
GPTQ = Format(packed.gptq(4, 32), {"quant_method": "gptq", "bits": 4, "group_size": 32})
NF4 = Format(packed.bnb_4(32), {"quant_method": "bitsandbytes", "load_in_4bit": True}, torch.bfloat16)


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return where a model is that isn't quantised."""
    path = tmp_path_factory.mktemp("plain")
    save_model("llama", path)
    return path


@needs_kernels
@pytest.mark.parametrize("form", [AWQ, NF4], ids=["awq", "nf4"])
def test_weights_stay_in_4_bits_where_layers_are_not_fused(form: Format, tmp_path: Path) -> None:
    model = save_quantised("llama", tmp_path, form, rounded=False)
    session = Session(replace(config(tmp_path, max_total_tokens=64), fuse_layers=False))
    assert session.level == "native"
    assert session.info.quantization is not None
    assert session.info.quantization.endswith("kept in 4 bits")
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize("off", ["compress_weights", "narrow_weights", "native_kernels"])
def test_weights_in_4_bits_are_expanded_without_what_keeps_them(off: str, tmp_path: Path) -> None:
    model = save_quantised("llama", tmp_path, AWQ)
    settings = config(tmp_path, max_total_tokens=64)
    session = Session(replace(settings, **{off: False}))  # type: ignore[arg-type]
    assert session.info.quantization == "awq, 4 bits in groups of 32, expanded to float16"
    check_texts(session, model)
    session.close()


@needs_kernels
def test_weights_that_stay_in_4_bits_are_planned_with(tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, AWQ)
    settings = config(tmp_path, max_total_tokens=64)
    sources = [find_source(replace(settings, compress_weights=on), 1, lambda _: None) for on in (True, False)]
    kept, expanded = (source.demand() for source in sources)
    spared = 2 * sources[0].kept.numbers - sources[0].kept.nbytes
    assert spared > sources[0].kept.numbers
    assert expanded.weights_bytes - kept.weights_bytes == spared
    assert expanded.loading_bytes - kept.loading_bytes == spared
    assert kept.weights_form.startswith("4 bits, others ")


@needs_kernels
def test_linears_that_are_stored_turned_are_planned_with_in_4_bits(tmp_path: Path) -> None:
    save_model("gpt2", tmp_path, dtype=torch.bfloat16)
    wide, rounded = (
        find_source(each, 1, lambda _: None)
        for each in (config(tmp_path, max_total_tokens=64), rounding(tmp_path, "bitsandbytes-nf4"))
    )
    spared = 2 * rounded.kept.numbers - rounded.kept.nbytes
    assert wide.demand().weights_bytes - rounded.demand().weights_bytes == spared > 0
    assert wide.demand().loading_how == "loaded in float32"
    assert wide.demand().loading_bytes - wide.demand().weights_bytes == 2 * rounded.kept.numbers


@needs_kernels
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "qwen3_moe", "gpt_oss", "gpt_neox", "gpt2"])
@pytest.mark.parametrize("asked", ["bitsandbytes-nf4", "bitsandbytes-fp4"])
def test_weights_are_rounded_to_4_bits_at_the_start(asked: str, family: str, tmp_path: Path) -> None:
    model = save_model(family, tmp_path)
    session = Session(rounding(tmp_path, asked))
    assert session.info.quantization is None
    rounded_as(model, asked.removeprefix("bitsandbytes-"))
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"native_kernels": False},
            "rounded to 4 bits by the native kernels, but native kernels are switched",
        ),
        ({"shards": 2}, "shards have none of them"),
    ],
)
def test_rounding_to_4_bits_is_refused_where_nothing_does_it(
    changes: dict[str, Any], message: str, directory: Path
) -> None:
    with pytest.raises(ModelUnavailable, match=rf"--quantize bitsandbytes-nf4 has weights .*{message}"):
        find_source(replace(rounding(directory, "bitsandbytes-nf4"), **changes), 1, lambda _: None)


@needs_kernels
@pytest.mark.parametrize("plain", ["k_proj", "up_proj"])
def test_what_is_computed_as_one_is_in_4_bits_together_or_not_at_all(plain: str, tmp_path: Path) -> None:
    model = save_quantised("llama", tmp_path, AWQ, keep=("lm_head", plain), rounded=False)
    found = find_source(config(tmp_path, max_total_tokens=64), 1, lambda _: None)
    beside = {"k_proj": "q_proj", "up_proj": "gate_proj"}[plain]
    assert not any(name.endswith((f"{beside}.weight", f"{plain}.weight")) for name in found.kept.places)
    assert any(name.endswith("down_proj.weight") for name in found.kept.places)
    session = Session(config(tmp_path, max_total_tokens=64))
    assert session.info.dtype == "torch.float16", "and not in 32 bits"
    assert (
        session.info.quantization == "awq, 4 bits in groups of 32, kept in 4 bits, some expanded to float16"
    )
    assert session.run([request("0", PROMPTS[0], tokens=1)]).tokens("0") == generate(model, PROMPTS[0], 1)
    session.close()


@needs_kernels
@pytest.mark.parametrize("family", ["bloom", "mpt"])
def test_models_that_ask_where_a_weight_is_stay_at_their_level(family: str, tmp_path: Path) -> None:
    model = save_model(family, tmp_path)
    plain = Session(config(tmp_path, max_total_tokens=64))
    session = Session(rounding(tmp_path, "bitsandbytes-nf4"))
    assert session.level == plain.level == "fused"
    rounded_as(model, "nf4")
    check_texts(session, model)
    session.close()
    plain.close()


@needs_kernels
def test_what_stands_for_weights_is_what_the_loader_makes_of_them(tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, NF4)
    stored = read_weights(tmp_path).stored
    assert stored is not None
    name = "model.layers.0.mlp.up_proj.weight"
    with expanded(stored, safetensors_files(tmp_path), kept=[name], kept_as=torch.float16) as (tensors, _):
        given = tensors[name][...]
    assert given.dtype == torch.float16, "or it would be converted, and be all there"
    assert given.untyped_storage().nbytes() == 2


@needs_kernels
def test_a_level_that_is_left_again_leaves_weights_in_4_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_quantised("llama", tmp_path, AWQ, rounded=False)
    serve = Climb.serve

    def no_fused(climb: Climb, attempt: Attempt) -> Served | None:
        return None if attempt.level is Level.FUSED else serve(climb, attempt)

    monkeypatch.setattr(Climb, "serve", no_fused)
    session = Session(config(tmp_path, max_total_tokens=64))
    assert session.level == "native"
    assert session.info.quantization == "awq, 4 bits in groups of 32, kept in 4 bits"
    check_texts(session, model)
    session.close()


@needs_kernels
def test_adapters_add_to_weights_in_4_bits(tmp_path: Path) -> None:
    model = save_quantised("llama", tmp_path / "model", AWQ, rounded=False)
    adapter = toy_adapter(model, rank=4)
    adapter.save(tmp_path / "adapter")
    session = Session(
        config(tmp_path / "model", adapters=(f"own={tmp_path / 'adapter'}",), max_total_tokens=64)
    )
    asked = [request("0", PROMPTS[1], tokens=TOKENS, ignore_eos=True, adapter=each) for each in (0, -1)]
    for each, oracle in zip(asked, (adapter.merged(model), model), strict=True):
        expected = generate(oracle, PROMPTS[1], TOKENS, eos_token_id=VOCABULARY + 1)
        assert session.run([each]).tokens("0") == expected
    session.close()


@needs_kernels
def test_weights_are_loaded_again_where_the_level_can_not_keep_them(tmp_path: Path) -> None:
    model = save_quantised("roformer", tmp_path, GPTQ)
    session = Session(config(tmp_path, max_total_tokens=64))
    assert session.level == "sequential"
    assert session.info.quantization == "gptq, 4 bits in groups of 32, expanded to float16"
    (line,) = [each for each in session.progress if "they are loaded again, and expanded" in each]
    assert line.startswith("Weights can't be in 4 bits at level sequential: ")
    plans = [each for each in session.progress if each.startswith("Plan: ")]
    assert ["4 bits" in each for each in plans[:2]] == [True, False]
    check_texts(session, model)
    session.close()


@needs_kernels
def test_rounding_to_4_bits_is_refused_where_the_level_can_not_keep_them(tmp_path: Path) -> None:
    save_model("roformer", tmp_path)
    with pytest.raises(
        ModelUnavailable, match="--quantize bitsandbytes-fp4 needs the native kernels, and they"
    ):
        Session(rounding(tmp_path, "bitsandbytes-fp4"))


def rounded_as(model: PreTrainedModel, kind: str) -> None:
    """Have a model hold what bitsandbytes makes of its linears and experts, but for head and routers."""
    head = model.get_output_embeddings()
    with torch.inference_mode():
        for module in model.modules():
            if isinstance(module, torch.nn.Linear) and module is not head and module.out_features != 4:
                module.weight.copy_(as_bitsandbytes(module.weight, kind))
            if isinstance(module, Conv1D):
                module.weight.copy_(as_bitsandbytes(module.weight.T.contiguous(), kind).T)
            for weights in expert_weights(module).values():
                turned = weights.transpose(1, 2) if module.is_transposed else weights
                for each in turned:
                    each.copy_(as_bitsandbytes(each.contiguous(), kind))


def as_bitsandbytes(weight: torch.Tensor, kind: str) -> torch.Tensor:
    """Return what bitsandbytes makes of a weight, whose rows are whole blocks for it: padded by zeros."""
    functional = pytest.importorskip("bitsandbytes").functional
    rows, columns = weight.shape
    whole = torch.nn.functional.pad(weight, (0, -columns % 64)).contiguous()
    packed, state = functional.quantize_4bit(whole, blocksize=64, quant_type=kind)
    found: torch.Tensor = functional.dequantize_4bit(packed, state)
    return found.view(rows, -1)[:, :columns]
