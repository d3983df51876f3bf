"""When a model's own code is run."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("torch")

from inference.config import ModelConfig
from inference.loading.own_code import runs_code


@pytest.mark.parametrize(
    ("family", "named", "expected"),
    [
        ("deepseek_v3", ["DeepseekV3ForCausalLM"], False),
        ("mpt", ["MPTForCausalLM"], False),  # which transformers writes otherwise
        ("ernie4_5", ["Ernie4_5_ForCausalLM"], False),
        ("mllama", ["MllamaForConditionalGeneration"], False),
        ("bart", ["BartForConditionalGeneration"], False),
        ("llama", None, False),
        ("llama", [], False),
        ("gpt2", ["GPT2LMHeadCustomModel"], True),
        ("own", ["LlamaForCausalLM"], True),
        ("clip", ["CLIPModel"], True),
        (None, None, True),
        (["llama"], 5, True),
    ],
)
def test_code_is_run_that_transformers_has_nothing_in_place_of(
    family: object, named: object, expected: bool, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": family, "architectures": named}))
    assert runs_code(tmp_path, ModelConfig(trust_remote_code=True)) is expected
    assert not runs_code(tmp_path, ModelConfig())
