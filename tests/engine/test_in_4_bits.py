"""Linears that compute with weights in 4 bits, as files have them or rounded at the start."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from inference.errors import ModelUnavailable
from inference.kernels.native import open_library
from inference.loading.source import find_source
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
@pytest.mark.parametrize("family", ["llama", "qwen2", "gemma2", "qwen3_moe", "gpt_neox"])
@pytest.mark.parametrize("asked", ["bitsandbytes-nf4", "bitsandbytes-fp4"])
def test_weights_are_rounded_to_4_bits_at_the_start(asked: str, family: str, tmp_path: Path) -> None:
    model = save_model(family, tmp_path)
    session = Session(rounding(tmp_path, asked))
    assert session.info.quantization is None
    head = model.get_output_embeddings()
    with torch.inference_mode():
        for module in model.modules():
            if type(module) is torch.nn.Linear and module is not head and module.out_features != 4:
                module.weight.copy_(as_bitsandbytes(module.weight, asked.removeprefix("bitsandbytes-")))
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


def as_bitsandbytes(weight: torch.Tensor, kind: str) -> torch.Tensor:
    """Return what bitsandbytes makes of a weight, whose rows are whole blocks for it: padded by zeros."""
    functional = pytest.importorskip("bitsandbytes").functional
    rows, columns = weight.shape
    whole = torch.nn.functional.pad(weight, (0, -columns % 64)).contiguous()
    packed, state = functional.quantize_4bit(whole, blocksize=64, quant_type=kind)
    found: torch.Tensor = functional.dequantize_4bit(packed, state)
    return found.view(rows, -1)[:, :columns]
