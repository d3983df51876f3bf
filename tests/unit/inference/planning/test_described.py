from __future__ import annotations

import pytest

pytest.importorskip("torch")

from transformers import AutoConfig

from inference.cpu.batched import find_parts
from inference.planning.described import _kv_elements
from tests.engine.models import make_model


@pytest.mark.parametrize(
    ("family", "members", "expected"),
    [
        ("falcon", {}, 32 * 2 * 64),  # 71 heads, and one that has keys
        ("falcon", {"multi_query": False}, 32 * 71 * 2 * 64),
        ("falcon", {"new_decoder_architecture": True, "num_kv_heads": 8}, 32 * 8 * 2 * 64),
        ("gpt_bigcode", {"multi_query": True}, 12 * 2 * 64),
        ("llama", {"num_key_value_heads": 4}, 32 * 4 * 2 * 128),
        ("deepseek_v32", {"num_hidden_layers": 61}, 61 * (512 + 64 + 128)),
        ("deepseek_v3", {"num_hidden_layers": 61}, 61 * (512 + 64)),
        ("minicpm3", {"num_hidden_layers": 62}, 62 * (256 + 32)),
    ],
)
def test_a_token_takes_what_its_family_keeps(family: str, members: dict[str, object], expected: int) -> None:
    assert _kv_elements(AutoConfig.for_model(family, **members)) == expected


def test_without_latents_a_token_takes_the_keys_and_values_of_every_head() -> None:
    described = AutoConfig.for_model("deepseek_v3", num_hidden_layers=61)
    assert _kv_elements(described, latents=False) == 61 * 128 * (128 + 64 + 128)


@pytest.mark.parametrize("family", ["llama", "falcon", "gpt_bigcode", "deepseek_v32"])
def test_a_token_takes_what_the_models_own_code_keeps(family: str) -> None:
    model = make_model(family)
    kept = sum(part.elements for part in find_parts(model))
    assert _kv_elements(model.config.get_text_config()) == kept
