"""Mixtures of experts on the path that GPUs take: texts are transformers' own, alone and in a batch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import log_softmax

from inference.gpu.experts import DeviceExperts
from inference.levels.ladder import Climb
from tests.engine.cores import Session, request
from tests.engine.models import VOCABULARY, generate, make_model, prompts, save_model
from tests.engine.quantised import save_quantised
from tests.engine.quantised_experts import save_mxfp4
from tests.engine.test_device_path import config, said
from tests.engine.test_in_4_bits import AWQ
from tests.engine.test_quantised import FORMATS
from tests.engine.texts import check_texts

PROMPTS = prompts(10, 40, 3, 25)
TOKENS = 16
FAMILIES = ("mixtral", "qwen3_moe", "olmoe", "gpt_oss", "glm4_moe", "deepseek_v3", "granitemoe", "qwen3_next")
NEVER = VOCABULARY + 1


@pytest.fixture
def stood_in(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return how many layers' experts are replaced in each model that is served from now on."""
    counts: list[int] = []
    serve = Climb.serve

    def counting(climb: Climb, *args: object) -> object:
        counts.append(sum(isinstance(each, DeviceExperts) for each in climb.model.modules()))
        return serve(climb, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Climb, "serve", counting)
    return counts


@pytest.mark.parametrize("family", FAMILIES)
def test_texts_are_transformers_own_alone_and_in_a_batch(
    family: str, tmp_path: Path, stood_in: list[int]
) -> None:
    model = save_model(family, tmp_path)
    session = Session(config(tmp_path, max_batch_size=4, max_total_tokens=64), device_path=True)
    assert session.level == "paged+merged"
    assert stood_in[-1] > 0
    crowd = [request(str(at), each, tokens=TOKENS, ignore_eos=True) for at, each in enumerate(PROMPTS)]
    heard = session.run(crowd)
    for at, prompt in enumerate(PROMPTS):
        expected = generate(model, prompt, TOKENS, eos_token_id=NEVER)
        assert heard.tokens(str(at)) == expected
        ids = torch.tensor([[*prompt, *expected]])
        with torch.inference_mode():
            logprobs = log_softmax(model(ids).logits[0].float(), -1)
        own = [float(logprobs[len(prompt) - 1 + step, token]) for step, token in enumerate(expected)]
        assert [logprob for _, logprob in said(heard, str(at))] == pytest.approx(own, abs=1e-4)
        alone = session.run([request("alone", prompt, tokens=TOKENS, ignore_eos=True)])
        assert alone.tokens("alone") == expected
    session.close()


@pytest.mark.parametrize("off", ["group_experts", "native_kernels"])
def test_texts_are_the_same_without(off: str, tmp_path: Path, stood_in: list[int]) -> None:
    model = save_model("qwen3_moe", tmp_path)
    settings: dict[str, Any] = {off: False}
    session = Session(config(tmp_path, max_total_tokens=64, **settings), device_path=True)
    assert (stood_in[-1] == 0) is (off == "group_experts")
    heard = session.run([request("0", PROMPTS[0], tokens=TOKENS, ignore_eos=True)])
    assert heard.tokens("0") == generate(model, PROMPTS[0], TOKENS, eos_token_id=NEVER)
    session.close()


def test_experts_that_do_not_reproduce_are_put_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_model("mixtral", tmp_path)
    run, calls = DeviceExperts.forward, [0]

    def wrong_later(experts: DeviceExperts, *given: torch.Tensor) -> torch.Tensor:
        calls[0] += 1
        return run(experts, *given) * (1.0 if calls[0] <= 6 else 1.1)  # right while each layer is tried

    monkeypatch.setattr(DeviceExperts, "forward", wrong_later)
    session = Session(config(tmp_path, max_total_tokens=64), device_path=True)
    assert session.level == "paged"
    heard = session.run([request("0", PROMPTS[0], tokens=TOKENS, ignore_eos=True)])
    assert heard.tokens("0") == generate(make_model("mixtral"), PROMPTS[0], TOKENS, eos_token_id=NEVER)
    session.close()


@pytest.mark.parametrize(("form", "bits"), [("mxfp4", 4), ("awq", 4), ("fp8 by blocks", 8)])
def test_experts_stay_in_the_files_bits(form: str, bits: int, tmp_path: Path, stood_in: list[int]) -> None:
    if form == "mxfp4":
        model = save_mxfp4(tmp_path)
    else:
        model = save_quantised("qwen3_moe", tmp_path, AWQ if form == "awq" else FORMATS[form], rounded=False)
    session = Session(config(tmp_path, max_total_tokens=64), device_path=True)
    assert stood_in[-1] == 3
    assert session.info.quantization is not None
    assert session.info.quantization.endswith(f"kept in {bits} bits")
    check_texts(session, model)
    session.close()


def test_experts_are_expanded_where_they_are_left_to_transformers(tmp_path: Path) -> None:
    model = save_mxfp4(tmp_path)
    session = Session(config(tmp_path, max_total_tokens=64, group_experts=False), device_path=True)
    assert session.info.quantization is not None
    assert session.info.quantization.endswith("expanded to bfloat16")
    check_texts(session, model)
    session.close()
