"""Linears in 4 and 8 bits on the path that GPUs take, as files have them or rounded at the start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.config import EngineConfig
from inference.errors import ModelUnavailable
from inference.levels.ladder import Attempt, Climb
from inference.levels.served import Level, Served
from inference.loading.model import kept_weights
from inference.loading.source import find_source
from tests.engine import quantised as packed
from tests.engine.adapters import toy_adapter
from tests.engine.cores import Session, config, request
from tests.engine.models import VOCABULARY, generate, save_model
from tests.engine.quantised import Format, save_quantised
from tests.engine.test_in_4_bits import AWQ, GPTQ, NF4, rounded_as
from tests.engine.test_quantised import FORMATS as ALL_FORMATS
from tests.engine.texts import PROMPTS, TOKENS, check_texts

FORMATS = {
    "awq": AWQ,
    "gptq": GPTQ,
    "gptq in rows": Format(packed.gptq(4, -1), {"quant_method": "gptq", "bits": 4, "group_size": -1}),
    "nf4": NF4,
}
IN_8_BITS = (
    *("fp8 by blocks", "fp8 by uneven blocks", "fp8 by tensors", "fp8 of fbgemm", "mxfp8", "compressed fp8"),
    *("compressed int8", "compressed in 8 bits", "bitsandbytes int8", "gptq in 8 bits, symmetric"),
)


def on_device(directory: Path, quantize: str | None = None, **settings: Any) -> EngineConfig:
    plain = config(directory, max_total_tokens=64, **settings)
    model = replace(plain.model, dtype="float32", device="auto", quantize=quantize)
    return replace(plain, model=model)


def opened(settings: EngineConfig) -> Session:
    return Session(settings, device_path=True)


@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "gpt_neox", "stablelm"])
@pytest.mark.parametrize("name", FORMATS)
def test_weights_stay_in_4_bits(name: str, family: str, tmp_path: Path) -> None:
    model = save_quantised(family, tmp_path, FORMATS[name], rounded=False)
    session = opened(on_device(tmp_path))
    assert session.level == {"gpt_neox": "paged", "stablelm": "paged+merged"}.get(family, "fused")
    assert session.info.quantization is not None
    assert session.info.quantization.endswith("kept in 4 bits")
    assert any(line.endswith(" MiB in 4 bits") for line in session.progress)
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize("family", ["llama", "stablelm"])
@pytest.mark.parametrize("name", IN_8_BITS)
def test_weights_stay_in_8_bits(name: str, family: str, tmp_path: Path) -> None:
    model = save_quantised(family, tmp_path, ALL_FORMATS[name], rounded=False)
    session = opened(on_device(tmp_path))
    assert session.info.quantization is not None
    assert session.info.quantization.endswith("kept in 8 bits")
    assert any(line.endswith(" MiB in 8 bits") for line in session.progress)
    assert any("weights" in line and "8 bits, others" in line for line in session.progress)
    check_texts(session, model)
    session.close()


def test_neighbours_whose_numbers_are_of_another_kind_are_expanded(tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, ALL_FORMATS["compressed fp8"])
    source = find_source(on_device(tmp_path), 1, lambda _: None, device_path=True)
    stored = source.weights.stored
    assert stored is not None
    others = {
        name: replace(each, kind="I8") if "k_proj" in name else each for name, each in stored.weights.items()
    }
    weights = replace(source.weights, stored=replace(stored, weights=others))
    mixed = kept_weights(source.described, weights, None, (4, 8), experts=False)
    gone = {name for name in source.kept.places if name not in mixed.places}
    assert {name.rsplit(".", 2)[-2] for name in gone} == {"q_proj", "k_proj", "v_proj"}
    assert any("o_proj" in name for name in mixed.places)


def test_weights_in_8_bits_that_have_zero_points_are_expanded(tmp_path: Path) -> None:
    model = save_quantised("llama", tmp_path, ALL_FORMATS["gptq in 8 bits"])
    session = opened(on_device(tmp_path))
    assert session.info.quantization == "gptq, 8 bits by rows, expanded to float16"
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize(
    ("left", "level", "becomes"),
    [
        ({Level.FUSED}, Level.PAGED_MERGED, "kept in 4 bits"),
        ({Level.FUSED, Level.PAGED_MERGED}, Level.PAGED, "expanded to float16"),  # its linears are its own
    ],
)
def test_layers_that_are_put_back_are_in_4_bits_again(
    left: set[Level], level: Level, becomes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_quantised("llama", tmp_path, AWQ, rounded=becomes != "kept in 4 bits")
    serve = Climb.serve

    def no_better(climb: Climb, attempt: Attempt) -> Served | None:
        return None if attempt.level in left else serve(climb, attempt)

    monkeypatch.setattr(Climb, "serve", no_better)
    session = opened(on_device(tmp_path))
    assert session.level == level
    assert session.info.quantization == f"awq, 4 bits in groups of 32, {becomes}"
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize("off", ["compress_weights", "native_kernels"])
def test_weights_in_4_bits_are_expanded_without_what_keeps_them(off: str, tmp_path: Path) -> None:
    model = save_quantised("llama", tmp_path, AWQ)
    session = opened(replace(on_device(tmp_path), **{off: False}))  # type: ignore[arg-type]
    assert session.info.quantization == "awq, 4 bits in groups of 32, expanded to float16"
    check_texts(session, model)
    session.close()


def test_weights_are_loaded_again_where_the_level_can_not_keep_them(tmp_path: Path) -> None:
    model = save_quantised("roformer", tmp_path, GPTQ)
    session = opened(on_device(tmp_path))
    assert session.level == "sequential"
    assert session.info.quantization == "gptq, 4 bits in groups of 32, expanded to float16"
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize("kind", ["nf4", "fp4"])
@pytest.mark.parametrize("family", ["llama", "gpt_neox", "qwen3_moe"])
def test_weights_are_rounded_to_4_bits_at_the_start(kind: str, family: str, tmp_path: Path) -> None:
    model = save_model(family, tmp_path)
    session = opened(on_device(tmp_path, quantize=f"bitsandbytes-{kind}"))
    rounded_as(model, kind)
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize("asked", ["int8", "eetq", "bitsandbytes", "fp8"])
def test_weights_are_rounded_to_8_bits_at_the_start(asked: str, tmp_path: Path) -> None:
    model = save_model("llama", tmp_path)
    session = opened(on_device(tmp_path, quantize=asked))
    assert any(line.endswith(" MiB in 8 bits") for line in session.progress)
    with torch.inference_mode():
        for module in model.model.modules():
            if isinstance(module, torch.nn.Linear):
                scale = module.weight.abs().amax(1, keepdim=True) / 127
                module.weight.copy_((module.weight / scale).round() * scale)
    check_texts(session, model)
    session.close()


def test_files_in_4_bits_are_rounded_to_8_where_that_is_asked_for(tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, AWQ)
    session = opened(on_device(tmp_path, quantize="int8"))
    assert session.info.quantization == "awq, 4 bits in groups of 32, expanded to float16"
    assert any(line.endswith(" MiB in 8 bits") for line in session.progress)
    session.close()


def test_files_that_are_rounded_are_planned_as_expanded_until_then(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("inference.loading.source.MIB", 1)  # or a toy's sizes are all 0
    save_quantised("llama", tmp_path, AWQ)
    said: list[str] = []
    expanded = replace(on_device(tmp_path), compress_weights=False)
    sources = [
        find_source(each, 1, said.append, device_path=True)
        for each in (on_device(tmp_path, quantize="int8"), expanded)
    ]
    assert said[0] == said[1]
    assert sources[0].demand().loading_bytes == sources[1].demand().loading_bytes
    assert sources[0].demand().weights_bytes < sources[1].demand().weights_bytes


def test_rounding_is_refused_where_no_kernels_do_it(tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    settings = on_device(tmp_path, quantize="bitsandbytes-nf4", native_kernels=False)
    with pytest.raises(
        ModelUnavailable, match=r"--quantize bitsandbytes-nf4 has weights rounded to 4 bits by"
    ):
        find_source(settings, 1, lambda _: None, device_path=True)


def test_adapters_add_to_weights_in_4_bits(tmp_path: Path) -> None:
    model = save_quantised("llama", tmp_path / "model", AWQ, rounded=False)
    adapter = toy_adapter(model, rank=4)
    adapter.save(tmp_path / "adapter")
    session = opened(on_device(tmp_path / "model", adapters=(f"own={tmp_path / 'adapter'}",)))
    asked = [request("0", PROMPTS[1], tokens=TOKENS, ignore_eos=True, adapter=each) for each in (0, -1)]
    for each, oracle in zip(asked, (adapter.merged(model), model), strict=True):
        expected = generate(oracle, PROMPTS[1], TOKENS, eos_token_id=VOCABULARY + 1)
        assert session.run([each]).tokens("0") == expected
    session.close()
