"""Code that comes with a model is run where nothing else computes it; an adapter beside it isn't applied."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedModel

from inference.config import EngineConfig
from inference.files.checkpoint import Checkpoint, read_weights
from inference.kernels.native import open_library
from inference.loading.model import load_model, read_config
from inference.loading.source import find_source
from tests.engine.adapters import toy_adapter
from tests.engine.cores import Session, config, request
from tests.engine.models import VOCABULARY, generate, prompts, save_model
from tests.engine.quantised import save_quantised
from tests.engine.test_quantised import FORMATS

CODE = {  # as of a family that isn't in transformers
    "configuration_own.py": (
        "from transformers import LlamaConfig\nclass OwnConfig(LlamaConfig):\n    model_type = 'own'\n"
    ),
    "modeling_own.py": (
        "from transformers import LlamaForCausalLM\nfrom .configuration_own import OwnConfig\n"
        "class OwnForCausalLM(LlamaForCausalLM):\n    config_class = OwnConfig\n"
    ),
}
AUTO_MAP = {
    "AutoConfig": "configuration_own.OwnConfig",
    "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
}
DEVICES = [torch.device("cpu"), torch.device("meta")]  # the second is loaded for as a GPU is
TEXT = prompts(20)[0]


@pytest.fixture(autouse=True, scope="module")
def modules(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Have models' code copied to where only these tests have it."""
    with pytest.MonkeyPatch.context() as patch:
        folder = str(tmp_path_factory.mktemp("modules"))
        patch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", folder)
        patch.setattr(sys, "path", [*sys.path])
        for name in [each for each in sys.modules if each.startswith("transformers_modules")]:
            patch.delitem(sys.modules, name)
        yield


def bring_code(directory: Path, **members: Any) -> None:
    for name, code in CODE.items():
        (directory / name).write_text(code)
    file = directory / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"auto_map": AUTO_MAP} | members))


def trusting(directory: Path, **settings: Any) -> EngineConfig:
    plain = config(directory, max_total_tokens=64)
    return replace(plain, model=replace(plain.model, trust_remote_code=True, **settings))


def load(directory: Path, device: torch.device) -> PreTrainedModel:
    settings, checkpoint = trusting(directory).model, Checkpoint(directory, None)
    described, weights = read_config(checkpoint, settings), read_weights(directory)
    return load_model(checkpoint, settings, described, weights, device, lambda _: None)


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_code_of_a_family_that_transformers_has_is_not_run(
    device: torch.device, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_model("llama", tmp_path)
    bring_code(tmp_path)
    with caplog.at_level(logging.INFO):
        model = load(tmp_path, device)
    assert type(model).__module__ == "transformers.models.llama.modeling_llama"
    assert type(model.config).__name__ == "LlamaConfig"
    assert f"The code of `{tmp_path}` isn't run: transformers has its architecture" in caplog.text


def test_quantised_weights_of_such_a_family_are_served(tmp_path: Path) -> None:
    save_quantised("llama", tmp_path, FORMATS["gptq in 4 bits"])
    bring_code(tmp_path)
    assert find_source(trusting(tmp_path), 1, lambda _: None).demand().loading_how == "expanded"
    assert isinstance(load(tmp_path, DEVICES[0]), LlamaForCausalLM)


@pytest.mark.parametrize("device", DEVICES, ids=str)
@pytest.mark.parametrize("family", ["own", "llama"])
def test_code_of_another_architecture_is_run(family: str, device: torch.device, tmp_path: Path) -> None:
    save_model("llama", tmp_path)
    bring_code(tmp_path, model_type=family, architectures=["OwnForCausalLM"])
    assert type(load(tmp_path, device)).__name__ == "OwnForCausalLM"


def test_texts_of_a_models_own_code_are_its_own(tmp_path: Path) -> None:
    model = save_model("llama", tmp_path)
    bring_code(tmp_path, model_type="own", architectures=["OwnForCausalLM"])
    session = Session(trusting(tmp_path))
    heard = session.run([request("0", TEXT, tokens=12, ignore_eos=True)])
    assert heard.tokens("0") == generate(model, TEXT, 12, eos_token_id=VOCABULARY + 1)
    session.close()


@pytest.mark.skipif(open_library() is None, reason="the native kernels were not built")
@pytest.mark.parametrize(("quantize", "most"), [(None, 2.2), ("int8", 1.7)])
def test_what_its_own_code_is_loaded_in_is_planned(quantize: str | None, most: float, tmp_path: Path) -> None:
    save_model("llama", tmp_path).to(torch.bfloat16).save_pretrained(tmp_path)
    bring_code(tmp_path, model_type="own", architectures=["OwnForCausalLM"])
    demand = find_source(trusting(tmp_path, quantize=quantize), 1, lambda _: None).demand()
    floats = read_weights(tmp_path).floats
    assert demand.weights_bytes < most * floats
    assert (demand.loading_bytes, demand.loading_how) == (4 * floats, "loaded in float32")


@pytest.mark.parametrize("device", DEVICES, ids=str)
def test_adapter_beside_the_model_is_not_applied_where_peft_is_installed(
    device: torch.device, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    toy_adapter(save_model("llama", tmp_path)).save(tmp_path)
    applied: list[object] = []
    monkeypatch.setattr("transformers.integrations.peft.is_peft_available", lambda: True)
    monkeypatch.setattr("transformers.models.auto.auto_factory.is_peft_available", lambda: True)
    monkeypatch.setattr(PreTrainedModel, "load_adapter", lambda *given, **_: applied.append(given))
    load(tmp_path, device)
    assert not applied
