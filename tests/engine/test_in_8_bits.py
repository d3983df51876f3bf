"""Linears that compute on a CPU with weights in 8 bits, as files have them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from inference.kernels.native import open_library
from inference.levels.ladder import Attempt, Climb
from inference.levels.served import Level, Served
from inference.loading.source import find_source
from inference.planning.precision import kept_bits
from tests.engine.adapters import toy_adapter
from tests.engine.cores import Session, config, request
from tests.engine.models import VOCABULARY, generate
from tests.engine.quantised import save_quantised
from tests.engine.test_quantised import FORMATS
from tests.engine.texts import PROMPTS, TOKENS, check_texts, rounding

pytestmark = pytest.mark.skipif(open_library() is None, reason="the native kernels were not built")
SOME = ("fp8 by blocks", "compressed int8", "gptq in 8 bits, symmetric")


@pytest.mark.parametrize("family", ["qwen2", "gemma2", "gpt_neox", "stablelm", "bloom"])
@pytest.mark.parametrize("name", SOME)
def test_weights_stay_in_8_bits_at_the_level_that_a_model_has(name: str, family: str, tmp_path: Path) -> None:
    model = save_quantised(family, tmp_path, FORMATS[name], rounded=False)
    session = Session(config(tmp_path, max_total_tokens=64))
    assert session.level == "fused"
    assert session.info.quantization is not None
    assert session.info.quantization.endswith("kept in 8 bits")
    assert any(" MiB in 8 bits" in line for line in session.progress)
    assert any(line.startswith("Plan: ") and "(8 bits, others " in line for line in session.progress)
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize("isa", ["baseline", "avx2", "avx512"])
def test_texts_are_the_same_by_all_instructions(isa: str, tmp_path: Path) -> None:
    if open_library(1, isa) is None:
        pytest.skip(f"this CPU has no {isa}")
    model = save_quantised("llama", tmp_path, FORMATS["fp8 by blocks"], rounded=False)
    session = Session(replace(config(tmp_path, max_total_tokens=64), isa=isa))
    assert session.info.quantization == "fp8, blocks of 32x32, kept in 8 bits"
    check_texts(session, model)
    session.close()


@pytest.mark.parametrize("name", SOME)
def test_weights_that_stay_in_8_bits_are_planned_with(name: str, tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, FORMATS[name])
    settings = config(tmp_path, max_total_tokens=64)
    sources = [find_source(replace(settings, compress_weights=on), 1, lambda _: None) for on in (True, False)]
    kept, expanded = (source.demand() for source in sources)
    numbers, nbytes = sources[0].kept.numbers, sources[0].kept.nbytes
    assert numbers < nbytes, "there are scales, too"
    assert expanded.weights_bytes - kept.weights_bytes == 2 * numbers - nbytes
    assert expanded.loading_bytes - kept.loading_bytes == 2 * numbers - nbytes
    assert kept.weights_form.startswith("8 bits, others ")
    session = Session(settings)
    (said,) = [line for line in session.progress if " linears packed: " in line]
    assert " MiB in 8 bits" in said
    session.close()


@pytest.mark.parametrize("off", ["compress_weights", "narrow_weights", "native_kernels"])
def test_weights_in_8_bits_are_expanded_without_what_keeps_them(off: str, tmp_path: Path) -> None:
    model = save_quantised("llama", tmp_path, FORMATS["compressed fp8"])
    settings = config(tmp_path, max_total_tokens=64)
    session = Session(replace(settings, **{off: False}))  # type: ignore[arg-type]
    assert session.info.quantization == "compressed-tensors, FP8, expanded to bfloat16"
    check_texts(session, model)
    session.close()


def test_they_are_rounded_again_with_their_inputs_where_that_is_asked_for(tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, FORMATS["compressed int8"])
    session = Session(rounding(tmp_path, "int8"))
    assert session.info.dtype == "torch.int8"
    assert session.info.quantization is not None
    assert session.info.quantization.endswith("expanded to bfloat16")
    session.close()


def test_with_amx_they_are_expanded(tmp_path: Path) -> None:
    library = open_library()
    assert library is not None
    library.has_amx = True
    assert kept_bits(config(tmp_path), library, on_device=False) == ()
    library.has_amx = False
    assert kept_bits(config(tmp_path), library, on_device=False) == (4, 8)


def test_a_level_that_is_left_again_leaves_weights_in_8_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = save_quantised("llama", tmp_path, FORMATS["fp8 by blocks"], rounded=False)
    serve = Climb.serve

    def no_fused(climb: Climb, attempt: Attempt) -> Served | None:
        return None if attempt.level is Level.FUSED else serve(climb, attempt)

    monkeypatch.setattr(Climb, "serve", no_fused)
    session = Session(config(tmp_path, max_total_tokens=64))
    assert session.level == "native"
    assert session.info.quantization is not None
    assert session.info.quantization.endswith("kept in 8 bits")
    check_texts(session, model)
    session.close()


def test_adapters_add_to_weights_in_8_bits(tmp_path: Path) -> None:
    model = save_quantised("llama", tmp_path / "model", FORMATS["compressed fp8"], rounded=False)
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


@pytest.mark.parametrize("name", ["fp8 by blocks", "compressed int8"])
def test_weights_are_loaded_again_where_the_level_can_not_keep_them(name: str, tmp_path: Path) -> None:
    model = save_quantised("roformer", tmp_path, FORMATS[name])
    session = Session(config(tmp_path, max_total_tokens=64))
    assert session.level == "sequential"
    (line,) = [each for each in session.progress if "they are loaded again, and expanded" in each]
    assert line.startswith("Weights can't be in 8 bits at level sequential: ")
    plans = [each for each in session.progress if each.startswith("Plan: ")]
    assert ["8 bits" in each for each in plans[:2]] == [True, False]
    check_texts(session, model)
    session.close()
